"""What is drawn and what is reported follow from the logits and the settings alone."""

import math
from collections import Counter

import pytest

from proxy.sim.shaping import Manner, Sampling, choose, distribution, first_counts, log_softmax, single

SGLANG = Manner(by_position=True, raw_logprobs=False, penalises_prompt=False)
VLLM = Manner(by_position=False, raw_logprobs=True, penalises_prompt=True)
A, B, C = 97, 98, 99
LIKELY = {A: 0.0, B: -1.0, C: -2.0}
DRAWS = 4000


def drawn(sampling: Sampling) -> Counter[int]:
    logprobs = distribution(LIKELY, sampling, {}, SGLANG).sampled
    return Counter(choose(logprobs, sampling, seed, 11) for seed in range(DRAWS))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_logprobs_say(temperature: float) -> None:
    """Within three and a half standard deviations."""
    sampling = Sampling(temperature=temperature)
    told, counts = distribution(LIKELY, sampling, {}, SGLANG), drawn(sampling)

    for token_id in LIKELY:
        p = math.exp(told.logprob(token_id))
        assert counts[token_id] / DRAWS == pytest.approx(p, abs=3.5 * math.sqrt(p * (1 - p) / DRAWS))


def test_logprobs_are_those_of_the_tempered_distribution() -> None:
    """On SGLang; vLLM tells those of the bare logits unless it was started otherwise."""
    cold = Sampling(temperature=0.5)
    bare = log_softmax([0.0, -1.0, -2.0])

    assert distribution(LIKELY, cold, {}, SGLANG).logprob(B) == single(log_softmax([0.0, -2.0, -4.0])[1])
    assert distribution(LIKELY, cold, {}, VLLM).logprob(B) == single(bare[1])
    assert distribution(LIKELY, Sampling(), {}, SGLANG).logprob(B) == single(bare[1])


def test_greedy_takes_the_likeliest() -> None:
    """Whatever the seed."""
    assert drawn(Sampling(temperature=0)) == {A: DRAWS}


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (Sampling(top_k=1), {A}),
        (Sampling(top_k=2), {A, B}),
        (Sampling(top_p=0.5), {A}),
        (Sampling(top_p=0.8), {A, B}),
        (Sampling(min_p=0.2), {A, B}),
        (Sampling(top_k=0), {A, B, C}),
    ],
    ids=repr,
)
def test_filters_leave_the_likeliest(sampling: Sampling, left: set[int]) -> None:
    """And SGLang reports logprobs from before them."""
    assert set(drawn(sampling)) == left
    assert distribution(LIKELY, sampling, {}, SGLANG).logprob(C) == distribution(
        LIKELY, Sampling(), {}, SGLANG
    ).logprob(C)


def test_penalties_push_down_what_was_said() -> None:
    """By how often, for being there at all, and by a factor."""
    said = {A: 2}

    def logit(**settings: float) -> float:
        told = distribution(LIKELY, Sampling(**settings), said, SGLANG)  # type: ignore[arg-type]
        return told.sampled[A] - told.sampled[C]

    assert logit() == pytest.approx(2.0)
    assert logit(presence_penalty=0.5) == pytest.approx(1.5)
    assert logit(frequency_penalty=0.5) == pytest.approx(1.0)
    assert logit(repetition_penalty=2.0) == pytest.approx(2.0)
    assert distribution({A: 1.0, C: 0.0}, Sampling(repetition_penalty=2.0), said, SGLANG).sampled[A] < -0.4


def test_only_vllms_repetition_penalty_counts_the_prompt() -> None:
    """Presence and frequency never do."""
    assert first_counts([A, A, B], SGLANG) == {}
    assert first_counts([A, A, B], VLLM) == {A: 0, B: 0}
    told = distribution(LIKELY, Sampling(presence_penalty=2.0, repetition_penalty=1.5), {B: 0}, VLLM)
    assert told.sampled[A] - told.sampled[B] == pytest.approx(1.5)


def test_a_bias_moves_a_token_and_sglangs_logprob() -> None:
    """vLLM's logprob is of the bare logits."""
    biased = Sampling(logit_bias=((C, 100.0),))

    assert distribution(LIKELY, biased, {}, SGLANG).logprob(C) == 0.0
    assert distribution(LIKELY, biased, {}, VLLM).logprob(C) == distribution(LIKELY, Sampling(), {}, VLLM).logprob(C)


def test_the_likeliest_tokens_are_told_in_order() -> None:
    """With the logprobs that they have."""
    told = distribution(LIKELY, Sampling(), {}, SGLANG)

    assert told.top(2) == ((A, told.logprob(A)), (B, told.logprob(B)))
    assert sum(math.exp(lp) for _, lp in told.top(5)) == pytest.approx(1)
