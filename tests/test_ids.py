"""Ids survive packing bit by bit, and what does not fit is an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.ids import ID_BYTES, pack_ids, shared_ids, unpack_ids

ids = st.lists(st.integers(0, 2**31 - 1))


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
