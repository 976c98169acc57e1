"""Token ids and logprobs as bytes, without loss.

Ids are int32, little endian. Logprobs start with a tag byte: `f` for float32 where every value is exactly one, as
engines report them, else `d` for float64. Nothing is rounded and nothing wraps: what does not fit is an error.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import TypeVar

ID_BYTES = 4
Number = TypeVar("Number", int, float)

_SINGLE, _DOUBLE = b"f", b"d"


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


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Half the size where that loses nothing."""
    values = array("d", logprobs)
    single = array("f", values)
    if single.tolist() == values.tolist():
        return _SINGLE + _little_endian(single).tobytes()
    return _DOUBLE + _little_endian(values).tobytes()


def unpack_logprobs(packed: bytes) -> list[float]:
    values: array[float] = array("f" if packed[:1] == _SINGLE else "d")
    values.frombytes(packed[1:])
    return _little_endian(values).tolist()


def _little_endian(values: "array[Number]") -> "array[Number]":
    if sys.byteorder == "big":
        values.byteswap()
    return values
