"""The seeded draw is SGLang's, number for number."""

import math

import pytest

from proxy.noise import HIGHEST_NOISE, column_hash, gumbel, pick, seeded_state
from proxy.sim.shaping import Sampling, choose, log_softmax
from tests.sim.vectors import LOGITS, VECTORS, drawn, sequence_logits


def test_hashes_are_sglangs() -> None:
    """All 64 cases: negative seeds, seeds beyond 32 bits, far positions."""
    for seed, position, hashes in VECTORS["hash"]:
        state = seeded_state(seed, position)
        assert [column_hash(state, column) for column in range(len(hashes))] == hashes


def test_plain_draws_are_sglangs() -> None:
    """All 864: six rows of logits, sixteen seeds, nine positions."""
    wrong = [
        case
        for case in drawn(VECTORS["plain"], VECTORS["plain"]["tokens"])
        if pick(log_softmax(LOGITS[case[0]]), *case[1:3]) != case[3]
    ]

    assert wrong == []


@pytest.mark.parametrize("case", VECTORS["filtered"]["cases"], ids=lambda c: f"top_k={c['top_k']},top_p={c['top_p']}")
def test_filtered_draws_are_sglangs(case: dict[str, object]) -> None:
    """The noise hangs on the rank there: a filter that filters nothing gives other tokens all the same."""
    sampling = Sampling(top_p=float(str(case["top_p"])), top_k=int(str(case["top_k"])))
    tokens: list[str] = case["tokens"]  # type: ignore[assignment]

    for row, seed, position, token in drawn(VECTORS["filtered"], tokens):
        assert choose(log_softmax(LOGITS[row]), sampling, seed, position) == token


def test_a_sequence_is_sglangs() -> None:
    """Forty tokens out of fifty, position after position."""
    told = VECTORS["sequence"]
    places = enumerate(sequence_logits(), start=told["first_position"])

    assert [pick(log_softmax(row), told["seed"], position) for position, row in places] == told["tokens"]


def test_the_seeds_two_words_both_count() -> None:
    """Unlike on engines that take the low 32 bits."""
    assert seeded_state(7, 0) != seeded_state(7 + 2**32, 0)
    assert seeded_state(-1, 0) == seeded_state(2**64 - 1, 0)


def test_noise_has_ends() -> None:
    """Neither hash at the end of the range breaks anything, and leaving out the hopeless loses nothing."""
    assert gumbel(2**32 - 1) == pytest.approx(HIGHEST_NOISE)
    assert gumbel(0) < -700
    assert pick([-math.inf, -30.0, 0.0, -math.inf], 3, 5) == 2
