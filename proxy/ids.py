"""Token ids as bytes: to compare them without a loop, and to hold long conversations in little room.

An id is an int32, little endian. Nothing wraps: what does not fit is an error.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import TypeGuard

ID_BYTES = 4
# Records hold ids in 31 bits; no tokenizer comes near.
LARGEST_VOCABULARY = 2**31


def are_ids(values: object) -> TypeGuard[list[int]]:
    """Whether this is a list of whole numbers that ids can be; a prompt may be long, so nothing loops in Python."""
    if not isinstance(values, list):
        return False
    return not values or (set(map(type, values)) == {int} and min(values) >= 0 and max(values) < LARGEST_VOCABULARY)


def pack_ids(ids: Sequence[int]) -> bytes:
    """Raises ValueError on an id that is negative or does not fit 31 bits."""
    try:
        packed = _little_endian(array("i", ids)).tobytes()
    except OverflowError:
        raise ValueError("a token id does not fit 31 bits") from None
    if not packed[ID_BYTES - 1 :: ID_BYTES].isascii():  # the highest bit of any id is set
        raise ValueError("a token id is negative")
    return packed


def unpack_ids(packed: bytes) -> list[int]:
    ids = array("i")
    ids.frombytes(packed)
    return _little_endian(ids).tolist()


def shared_ids(one: bytes, other: bytes) -> int:
    """How many leading ids two packed sequences have in common."""
    low, high = 0, min(len(one), len(other)) // ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * ID_BYTES : middle * ID_BYTES] == other[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def _little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
