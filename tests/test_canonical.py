"""Canonical JSON: equal meaning gives equal bytes, for ever."""

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.canonical import canonical_json, digest, first_31_bits

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def reordered(value: Any) -> Any:
    """The same value, every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"null"),
        (True, b"true"),
        ([1, 1.0, -0.0, 0.5, 1e-7], b"[1,1,0,0.5,1e-07]"),
        (1e300, b"1e+300"),
        (2.0**53, b"9007199254740992"),
        (2**70, b"1180591620717411303424"),
        ({"b": 1, "a": [True, {}]}, b'{"a":[true,{}],"b":1}'),
        ({"Z": 1, "a": 2, "\u00e9": 3, "\U0001f600": 4}, '{"Z":1,"a":2,"é":3,"😀":4}'.encode()),
        ('q"\\\n\t\x01/', b'"q\\"\\\\\\n\\t\\u0001/"'),
        ((1, 2), b"[1,2]"),
    ],
)
def test_bytes_never_change(value: object, text: bytes) -> None:
    """Golden bytes: a change here changes every seed that was ever minted."""
    assert canonical_json(value) == text


def test_a_digest_names_its_algorithm() -> None:
    """The hash is plain SHA-256 over the canonical bytes, in hex."""
    assert digest({"b": 1.0, "a": None}) == "sha256:" + sha256(b'{"a":null,"b":1}').hexdigest()


def test_31_bits_come_from_the_front_big_endian() -> None:
    """The seed rule of the contract, computed by hand."""
    head = sha256(b'["x"]').digest()

    assert first_31_bits(["x"]) == ((head[0] & 0x7F) << 24) | (head[1] << 16) | (head[2] << 8) | head[3]


@given(VALUES)
def test_key_order_is_irrelevant(value: Any) -> None:
    """Clients serialise objects in whatever order."""
    assert canonical_json(reordered(value)) == canonical_json(value)


@given(st.integers(min_value=-(2**53), max_value=2**53))
def test_a_whole_float_is_its_integer(number: int) -> None:
    """JavaScript has no integers: 1.0 and 1 are one number."""
    assert canonical_json(float(number)) == canonical_json(number) == str(number).encode()


@given(VALUES)
def test_it_is_json_that_says_the_same(value: Any) -> None:
    """Nothing is lost on the way."""
    assert json.loads(canonical_json(value)) == value


@given(VALUES)
def test_canonical_json_of_canonical_json_is_itself(value: Any) -> None:
    """Reading it and writing it again changes no byte."""
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"deep": float("-inf")}]])
def test_numbers_that_json_has_not_are_refused(value: object) -> None:
    """NaN equals nothing, so no seed may hang on it."""
    with pytest.raises(ValueError, match="no canonical JSON form"):
        canonical_json(value)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_values_that_json_has_not_are_refused(value: object) -> None:
    """Only parsed JSON goes in."""
    with pytest.raises(TypeError, match="no canonical JSON form"):
        canonical_json(value)


def test_lone_surrogates_pass_and_stay_apart() -> None:
    """Clients can send half a character as an escape; it is hashed, not refused."""
    half, other = json.loads('"\\ud800"'), json.loads('"\\udc00"')

    assert canonical_json(half) == b'"\xed\xa0\x80"'
    assert digest(half) != digest(other)
