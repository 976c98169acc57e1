"""What a replay came to: recorded tokens and drawn ones, held against each other. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from proxy.model import CallId, JsonObject

VERDICT_SCHEMA = "rollpin.verdict/1"

VerdictWord = Literal["same", "diverged", "not_replayable", "weights_gone", "failed"]
DivergenceKind = Literal["token", "ended", "went_on", "logprob"]
VERDICT_WORDS: tuple[VerdictWord, ...] = ("same", "diverged", "not_replayable", "weights_gone", "failed")
NO_SUCH_ENGINE = "no_engine_like_it"
# What a reader can do about it; of every other reason docs/replay.md and docs/records.md tell the meaning.
REMEDIES = {
    NO_SUCH_ENGINE: "serve the kind, version, model and mode of the record's `engine`, and add it: POST /engines",
    "weights_gone": "load the recorded weights into the engine and tell their version (POST /weights); until then only "
    "`rollpin rescore` can be asked",
}


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token, and its logprob as the engine told it."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a replay leaves the record."""

    at: int
    """Index into the completion."""
    kind: DivergenceKind
    """Another token, an end before the recorded one, none where it stood, or a logprob beyond the tolerance."""
    recorded: Sampled | None
    drawn: Sampled | None
    score_gap: float | None = None
    """Where the noise is known: by how much the recorded token won over the drawn one in its own draw, in nats."""

    @property
    def gap(self) -> float | None:
        """Logprob of the drawn token less that of the recorded one."""
        if self.recorded is None or self.drawn is None:
            return None
        return self.drawn.logprob - self.recorded.logprob


@dataclass(frozen=True, slots=True)
class Difference:
    """How far logprobs of equal tokens lie apart, in nats."""

    tokens: int = 0
    largest: float = 0.0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.tokens if self.tokens else 0.0

    def plus(self, other: "Difference") -> "Difference":
        return Difference(self.tokens + other.tokens, max(self.largest, other.largest), self.total + other.total)


@dataclass(frozen=True, slots=True)
class Likeness:
    """One segment's draws beside the recorded ones."""

    difference: Difference
    divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is told of one call."""

    call_id: CallId
    word: VerdictWord
    reasons: tuple[str, ...] = ()
    """Why it could not be replayed, or what went wrong; for `weights_gone` both versions."""
    difference: Difference = Difference()
    divergence: Divergence | None = None
    engine: str | None = None
    """The engine that was asked."""
    tolerance: float | None = None
    seconds: float = 0.0


def compare(recorded: Sequence[Sampled], drawn: Sequence[Sampled], *, start: int, tolerance: float) -> Likeness:
    """Hold draws against the recorded tokens of a segment that begins at `start`.

    Tokens decide first: a logprob counts only where every token is the same.
    """
    same = 0
    while same < min(len(recorded), len(drawn)) and recorded[same].token_id == drawn[same].token_id:
        same += 1
    apart = [abs(one.logprob - other.logprob) for one, other in zip(recorded[:same], drawn[:same], strict=True)]
    difference = Difference(same, max(apart, default=0.0), sum(apart))
    if same < max(len(recorded), len(drawn)):
        return Likeness(difference, _other_token(recorded, drawn, same, start))
    beyond = next((place for place, distance in enumerate(apart) if distance > tolerance), None)
    if beyond is None:
        return Likeness(difference, None)
    return Likeness(difference, Divergence(start + beyond, "logprob", recorded[beyond], drawn[beyond]))


def _other_token(recorded: Sequence[Sampled], drawn: Sequence[Sampled], place: int, start: int) -> Divergence:
    ours = recorded[place] if place < len(recorded) else None
    theirs = drawn[place] if place < len(drawn) else None
    kind: DivergenceKind = "token" if ours and theirs else "ended" if ours else "went_on"
    return Divergence(start + place, kind, ours, theirs)


def verdict_document(verdict: Verdict, call: JsonObject) -> JsonObject:
    """A verdict as JSON; docs/replay.md explains each field."""
    found = verdict.divergence
    return {
        "schema": VERDICT_SCHEMA,
        **{name: call[name] for name in ("call_id", "rollout_id", "run", "group", "sample", "attempt")},
        "verdict": verdict.word,
        "reasons": list(verdict.reasons),
        "claimed": (call["replayable"] or {}).get("value"),
        "tokens": verdict.difference.tokens,
        "logprobs": {
            "largest_difference": verdict.difference.largest,
            "mean_difference": verdict.difference.mean,
            "tolerance": verdict.tolerance,
        },
        "diverged": None if found is None else divergence_document(found),
        "engine": verdict.engine,
        "seconds": round(verdict.seconds, 3),
    }


def divergence_document(found: Divergence) -> JsonObject:
    return {
        "at": found.at,
        "kind": found.kind,
        "recorded": _sampled(found.recorded),
        "drawn": _sampled(found.drawn),
        "gap": found.gap,
        "score_gap": found.score_gap,
    }


def _sampled(token: Sampled | None) -> JsonObject | None:
    return None if token is None else {"token_id": token.token_id, "logprob": token.logprob}


def summary_document(words: Sequence[VerdictWord], largest: float) -> JsonObject:
    """Verdicts counted; the rate is the share of `same` among the calls whose tokens were drawn again."""
    counts: dict[str, int] = {word: sum(1 for one in words if one == word) for word in VERDICT_WORDS}
    drawn = counts["same"] + counts["diverged"]
    return {
        "calls": len(words),
        **counts,
        "rate": counts["same"] / drawn if drawn else None,
        "largest_difference": largest,
    }
