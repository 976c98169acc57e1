"""Logprobs survive packing bit by bit."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from proxy.record.packing import pack_logprobs, unpack_logprobs

doubles = st.lists(st.floats())


def bits(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


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
