"""How far today's logprobs of recorded tokens lie from the recorded ones: the mismatch of trainer and engine. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from proxy.model import CallId, JsonObject

RESCORE_SCHEMA = "rollpin.rescore/1"
RESCORE_WORDS = ("rescored", "not_rescorable", "failed")
NEUTRAL_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
NEUTRAL_FILTERS = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Sums over tokens, so that those of several calls can be added; d is the logprob of now less the recorded one."""

    tokens: int = 0
    signed: float = 0.0
    absolute: float = 0.0
    largest: float = 0.0
    k3_total: float = 0.0

    def plus(self, other: "Mismatch") -> "Mismatch":
        return Mismatch(
            self.tokens + other.tokens,
            self.signed + other.signed,
            self.absolute + other.absolute,
            max(self.largest, other.largest),
            self.k3_total + other.k3_total,
        )

    def document(self) -> JsonObject:
        """Means per token; null where nothing was compared."""
        count = self.tokens
        return {
            "compared": count,
            "mean_difference": self.signed / count if count else None,
            "mean_absolute_difference": self.absolute / count if count else None,
            "largest_difference": self.largest if count else None,
            "kl_k1": -self.signed / count if count else None,
            "kl_k3": self.k3_total / count if count else None,
        }


@dataclass(frozen=True, slots=True)
class Rescore:
    """What came of one call."""

    call_id: CallId
    reasons: tuple[str, ...] = ()
    """Why there are no logprobs; empty where there are."""
    has_failed: bool = False
    """Whether it was tried."""
    logprobs: tuple[float, ...] = ()
    incomparable: tuple[str, ...] = ()
    """Why the recorded logprobs are of another distribution than these."""
    mismatch: Mismatch = Mismatch()
    engine: str | None = None
    weight_version: str | None = None

    @property
    def word(self) -> str:
        if self.has_failed:
            return "failed"
        return "not_rescorable" if self.reasons else "rescored"


def mismatch_of(recorded: Sequence[float], now: Sequence[float]) -> Mismatch:
    """Token by token. k3 is Schulman's estimator of KL(recorded || now), e^d - 1 - d: never negative.

    Source: J. Schulman, "Approximating KL divergence" (2020).
    """
    apart = [new - old for old, new in zip(recorded, now, strict=True)]
    return Mismatch(
        tokens=len(apart),
        signed=sum(apart),
        absolute=sum(map(abs, apart)),
        largest=max(map(abs, apart), default=0.0),
        k3_total=sum(_k3(d) for d in apart),
    )


def _k3(d: float) -> float:
    """Beyond what a float's exponent holds it is as good as infinite; cut there, so that sums stay numbers."""
    return math.expm1(min(d, 700.0)) - d


def incomparable(call: JsonObject) -> tuple[str, ...]:
    """Why recorded logprobs are not of the policy's bare distribution, which is what a rescore gives."""
    return tuple(_incomparable(call))


def _incomparable(call: JsonObject) -> Iterator[str]:
    mode, sampling = call["logprobs_mode"], call["sampling"]
    if mode == "raw_logprobs":
        return
    effective = sampling["effective"]
    if effective["temperature"] != 1:
        yield "temperature"
    if any(effective[name] != value for name, value in NEUTRAL_PENALTIES.items()):
        yield "penalties"
    if mode != "processed_before_filters" and any(effective[n] != value for n, value in NEUTRAL_FILTERS.items()):
        yield "filters"
    if sampling["constrained"]:
        yield "constrained"


def rescore_document(rescore: Rescore, call: JsonObject, *, with_logprobs: bool) -> JsonObject:
    """A rescore as JSON; docs/replay.md explains each field."""
    recorded = [segment["weight_version"] for segment in call["segments"] or ()]
    return {
        "schema": RESCORE_SCHEMA,
        **{name: call[name] for name in ("call_id", "rollout_id", "run", "group", "sample", "attempt")},
        "result": rescore.word,
        "reasons": list(rescore.reasons),
        "distribution": "raw_logprobs",
        "recorded_mode": call["logprobs_mode"],
        "not_comparable": list(rescore.incomparable),
        "tokens": len(rescore.logprobs),
        **rescore.mismatch.document(),
        "weight_version": {"recorded": list(dict.fromkeys(recorded)), "now": rescore.weight_version},
        "engine": rescore.engine,
        "logprobs": list(rescore.logprobs) if with_logprobs and rescore.logprobs else None,
    }


def mismatch_summary(counts: Mapping[str, int], whole: Mismatch) -> JsonObject:
    """Results counted, and the mismatch over all tokens that were compared."""
    return {"calls": sum(counts.values()), **counts, **whole.document()}
