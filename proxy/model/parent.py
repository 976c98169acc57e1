"""What a call goes on from: the search for its parent, what was found, and the tokens that the parent left."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from proxy.model.words import CallId, JsonObject

# Why a call has no parent yet whose prompt has no turns: what it goes on from only tokens tell, once they are known.
PLAIN_PROMPT = "plain_prompt"

ParentOutcome = Literal["root", "resolved", "unresolved"]


@dataclass(frozen=True, slots=True)
class Parent:
    """The call whose reply this request goes on from, or why there is none."""

    outcome: ParentOutcome
    reason: str
    call_id: CallId | None = None
    told_from: int | None = None
    """Place of the first of the request's messages that tell the parent's reply."""


@dataclass(frozen=True, slots=True)
class ParentCandidate:
    """An earlier call of the rollout that answered a beginning of the conversation at hand."""

    call_id: CallId
    history: str
    """Chain hash of what it answered."""
    message: JsonObject
    """The reply as the client got it."""
    ids_hash: str
    """Equal only where prompt and sampled ids are all equal; the call's own where they are not whole."""
    is_delivered: bool


@dataclass(frozen=True, slots=True)
class ParentSearch:
    """What a rollout holds that a request could go on from."""

    candidates: tuple[ParentCandidate, ...] = ()
    knows_history: bool = False
    """Whether the rollout ever asked a beginning of this conversation; if not, its assistant turns are foreign."""
    engine_call_ids: Mapping[str, str] = field(default_factory=dict)
    """Of the tool-call ids that were asked for: the client's -> the engine's own."""


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """What a recorded call put into the sequence, and how its reply ended."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    finish_reason: str | None
    matched_stop: int | str | None
    """What the engine says ended it: a stop string, or the id of a token that is not the first end token."""
    stops: tuple[str, ...]
    """Stop strings of its request."""
    has_stop_ids: bool
    """Whether its request named token ids to stop at."""
    reasoning: str
    engine_kind: str
    fingerprint: str | None
    tool_choice: Any = None
    """As the engine was given it, where it bent the distribution."""
