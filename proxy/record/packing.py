"""Logprobs as bytes, without loss.

They start with a tag byte: `f` for float32 where every value is exactly one, as engines report them, else `d` for
float64, both little endian. Nothing is rounded.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence

_SINGLE, _DOUBLE = b"f", b"d"


def tokens_hash(ids: bytes, logprobs: bytes) -> str:
    """Of packed prompt and sampled ids and packed logprobs: what a changed one no longer fits."""
    return "sha256:" + hashlib.sha256(ids + logprobs).hexdigest()


def ids_hash(prompt_ids: bytes, completion_ids: bytes) -> str:
    """Of packed ids: equal only where prompts are equal and replies are."""
    length = len(prompt_ids).to_bytes(8, "big")
    return "sha256:" + hashlib.sha256(length + prompt_ids + completion_ids).hexdigest()


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


def _little_endian(values: "array[float]") -> "array[float]":
    if sys.byteorder == "big":
        values.byteswap()
    return values
