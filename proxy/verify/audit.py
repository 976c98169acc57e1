"""The seed audit: did each sampled token win its draw? Recomputed from the record alone, without the engine.

SGLang's deterministic mode adds to each logprob a noise that follows from seed, position and token id
(proxy/noise.py), and takes the highest sum. Where the record holds the likeliest candidates of a draw, the sampled
token must beat each of them. A flipped token, another seed or another position does not.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from proxy.engine.gate import class_of
from proxy.model import JsonObject
from proxy.noise import column_hash, gumbel, seeded_state
from proxy.verify.faults import Fault

# Engines report float32 logprobs, and from another computation than the one that is sampled from: a hair apart.
MARGIN = 1e-4


@dataclass(frozen=True, slots=True)
class Lost:
    """A draw that the sampled token should not have won."""

    at: int
    sampled: int
    winner: int
    by: float
    """How far the winner's score lies above the sampled token's, in nats."""


@dataclass(slots=True)
class Auditor:
    """Audits calls one by one and keeps count."""

    calls: int = 0
    tokens: int = 0
    outside: float = 0.0
    """Probability outside the recorded candidates, summed over tokens."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Calls that could not be audited, by reason."""

    @property
    def mean_outside(self) -> float:
        """The mean probability that a draw had for tokens that are not on record."""
        return self.outside / self.tokens if self.tokens else 0.0

    def __call__(self, call: JsonObject) -> Iterator[Fault]:
        """The draws of a call that its tokens lost."""
        if call["state"] != "done":
            return
        if (reason := why_not(call)) is not None:
            self.left_out[reason] += 1
            return
        self.calls += 1
        self.tokens += len(call["completion_token_ids"])
        self.outside += sum(map(_outside, call["audit_candidates"]))
        lost = list(lost_draws(call))
        if lost:
            told = f"token {lost[0].at}: {lost[0].winner} wins over the recorded {lost[0].sampled}"
            more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
            message = f"{told} by {lost[0].by:.2g} with this seed{more}"
            yield Fault("audit", message, call["rollout_id"], call["call_id"])


def why_not(call: JsonObject) -> str | None:
    """Why a finished call cannot be audited."""
    engine, candidates = call["engine"], call.get("audit_candidates")
    if engine["kind"] != "sglang" or not engine["deterministic"]:
        return "engine_without_known_noise"
    if class_of(call["sampling"]["effective"]) != "plain":
        return "greedy_or_filtered"
    if candidates is None:
        return "streamed" if call["stream"] else "no_candidates"
    if len(candidates) != len(call["completion_token_ids"]) or not call["capture"]["complete"]:
        return "candidates_incomplete"
    return None


def lost_draws(call: JsonObject) -> Iterator[Lost]:
    """Every place where a recorded candidate beats the sampled token."""
    prompt_length = len(call["prompt_token_ids"])
    for segment in call["segments"]:
        for at in range(segment["start"], segment["end"]):
            sampled, logprob = call["completion_token_ids"][at], call["logprobs"][at]
            state = seeded_state(segment["seed"], prompt_length - 1 + at)
            own = logprob + gumbel(column_hash(state, sampled))
            winner, best = _best(call["audit_candidates"][at], state)
            if winner != sampled and best > own + MARGIN:
                yield Lost(at, sampled, winner, best - own)


def _best(candidates: Sequence[Sequence[float]], state: int) -> tuple[int, float]:
    """The candidate that wins among the recorded ones, and its score."""
    scores = [(logprob + gumbel(column_hash(state, int(token))), int(token)) for token, logprob in candidates]
    best, winner = max(scores, default=(-math.inf, -1))
    return winner, best


def _outside(candidates: Sequence[Sequence[float]]) -> float:
    return max(0.0, 1.0 - math.fsum(math.exp(logprob) for _token, logprob in candidates))
