"""Canonical JSON and the hashes over it: equal meaning gives equal bytes, in every process and for ever.

Object keys are sorted by code point, nothing is padded, text is UTF-8 without escapes beyond JSON's own, a float that
is a whole number is written as an integer (1.0 == 1), and a number that JSON cannot hold is an error. Lone surrogates,
which a client can send as escapes, pass through unharmed.
"""

import hashlib
import json
import math
from typing import Any, NoReturn

# Larger whole floats keep their float form: int() of 1e300 would print 301 digits that nobody wrote.
EXACT_FLOAT_LIMIT = 2.0**53


def strict_json(text: bytes | str) -> Any:
    """The value that a JSON text spells; Python's own parser also takes NaN, and lets 1e999 become infinite.

    Raises ValueError on those and on anything else that is not JSON, RecursionError on what is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def canonical_json(value: Any) -> bytes:
    """Canonical JSON of a parsed JSON value.

    Raises ValueError on NaN and infinities, TypeError on anything that JSON has no form for.
    """
    text = json.dumps(_settled(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hex, with the algorithm named."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def first_31_bits(value: Any) -> int:
    """First 4 bytes, big endian, masked to 31 bits, of SHA-256 over a value's canonical JSON."""
    head = hashlib.sha256(canonical_json(value)).digest()[:4]
    return int.from_bytes(head, "big") & 0x7FFFFFFF


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is beyond every number")
    return number


def _settled(value: Any) -> Any:
    """The value with whole floats as integers; object keys must be text already."""
    match value:
        case bool() | None | str() | int():
            return value
        case float():
            return _settled_float(value)
        case dict():
            return {key: _settled(item) for key, item in value.items()}
        case list() | tuple():
            return [_settled(item) for item in value]
        case _:
            raise TypeError(f"{type(value).__name__} has no canonical JSON form")


def _settled_float(value: float) -> int | float:
    if not math.isfinite(value):
        raise ValueError("NaN and infinities have no canonical JSON form")
    return int(value) if value.is_integer() and abs(value) <= EXACT_FLOAT_LIMIT else value
