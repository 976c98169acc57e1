"""What came back: a reply with its tokens and the segments that they were drawn in, or a failure."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from proxy.model.words import JsonObject


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids and logprobs of one reply; completion_ids and logprobs are aligned, one per sampled token."""

    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural logarithms, as the engine reported them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Generated tokens start … end-1 under one seed, one engine and one weight version."""

    start: int
    end: int
    seed: int
    weight_version: str | None
    engine: str
    kv_version: str | None = None
    """The weights that computed the cache of what stands before, where a pause kept it across an update."""
    notes: tuple[str, ...] = ()
    """What is not certain of the versions, as docs/weights.md lists it; empty where all is."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply that came to its end, or the part of one that did."""

    tokens: Tokens
    finish_reason: str | None
    message: JsonObject
    """The assistant message as the client got it."""
    engine_message: JsonObject
    """The same as the engine said it: its own tool-call ids and field names."""
    usage: JsonObject | None
    weight_versions: tuple[JsonObject, ...] = ()
    """Spans {version, start, end} where the engine reports them."""
    logprob_entries: tuple[Any, ...] = ()
    """Per token, the engine's whole logprob object; kept only where the client asked for logprobs."""
    matched_stop: int | str | None = None
    """What the engine says ended the reply: a stop string, or the id of a token that is not the first end token."""
    candidates: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token, (id, logprob) of the likeliest in its draw; kept only for the seed audit."""
    routed_experts: tuple[str, ...] = ()
    """Which experts each token went through, in the engine's own packing; one for each part that has it."""
    capture_gaps: tuple[str, ...] = ()
    """Why ids or logprobs cannot be trusted; empty means that every count agreed."""

    @property
    def captured(self) -> bool:
        """Whether the tokens are whole and aligned."""
        return not self.capture_gaps


@dataclass(frozen=True, slots=True)
class Failure:
    """An exchange that went wrong, as data."""

    kind: str
    """A word from docs/records.md: engine_unreachable, engine_cut, client_gone, …"""
    status: int
    """HTTP status that the client gets, or would have got."""
    message: str
    param: str | None = None
    engine_status: int | None = None
    detail: str | None = None
    """The cause as the network told it; on record, not told to the client."""
    may_retry: bool = True
    retry_after_s: int | None = None
    partial: Completion | None = None
    """What had arrived; never trained on."""


Outcome: TypeAlias = Completion | Failure
