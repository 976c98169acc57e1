"""Ids and logprobs survive packing bit by bit, and what does not fit is an error."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.record.packing import ID_BYTES, pack_ids, pack_logprobs, shared_ids, unpack_ids, unpack_logprobs

ids = st.lists(st.integers(0, 2**31 - 1))
doubles = st.lists(st.floats())


def bits(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


@given(ids)
def test_ids_survive(given_ids: list[int]) -> None:
    """Every id that fits 31 bits comes back."""
    assert unpack_ids(pack_ids(given_ids)) == given_ids


def test_ids_are_little_endian() -> None:
    """The bytes mean the same on every machine."""
    assert pack_ids((1, 256)) == b"\x01\x00\x00\x00\x00\x01\x00\x00"


@given(ids, st.one_of(st.integers(max_value=-1), st.integers(min_value=2**31)), ids)
def test_an_id_that_does_not_fit_is_an_error(before: list[int], bad: int, after: list[int]) -> None:
    """Wherever it stands, and however far off it is."""
    with pytest.raises(ValueError, match="token id"):
        pack_ids([*before, bad, *after])


@given(doubles)
def test_logprobs_survive(given_logprobs: list[float]) -> None:
    """To the last bit, NaN, infinities and negative zero included."""
    assert bits(unpack_logprobs(pack_logprobs(given_logprobs))) == bits(given_logprobs)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_logprobs_of_single_precision_take_half_the_room(given_logprobs: list[float]) -> None:
    """Engines report float32; storing them as float64 would say nothing more."""
    packed = pack_logprobs(given_logprobs)

    assert len(packed) == 1 + 4 * len(given_logprobs)
    assert unpack_logprobs(packed) == given_logprobs


def test_one_finer_logprob_keeps_all_in_double_precision() -> None:
    """Nothing is rounded."""
    assert unpack_logprobs(pack_logprobs((-0.5, -0.1))) == [-0.5, -0.1]


@given(ids, ids, ids)
def test_shared_ids_are_counted_from_the_start(start: list[int], one: list[int], other: list[int]) -> None:
    """As many as a plain comparison finds."""
    left, right = start + one, start + other
    same = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)

    expected = min(len(left), len(right)) if same is None else same
    assert shared_ids(pack_ids(left), pack_ids(right)) == expected


def test_ids_that_share_bytes_but_not_ids_share_nothing() -> None:
    """Sharing is counted in whole ids."""
    assert shared_ids(pack_ids([1]), pack_ids([1 + 2**24])) == 0
    assert ID_BYTES == 4
