"""What assembly reads of a `rollpin.call/1` document, and whether its tokens can be used at all."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy import clock
from proxy.canonical import digest
from proxy.ids import ID_BYTES, pack_ids
from proxy.model import CallId, JsonObject

SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One recorded call, read once."""

    order: int
    """Place among the rollout's calls, by reservation."""
    call_id: CallId
    request_id: str
    unusable: str | None
    """Why the call can be no part of a row: a failure kind, `no_outcome_yet`, `late`, `missing_ids`; else None."""
    parent_outcome: str
    """`root`, `resolved` or `unresolved`; a call without outcome yet counts as unresolved."""
    parent_reason: str
    parent_id: CallId | None
    tokens: bytes
    """Prompt and completion, packed: to compare without a loop, and to hold a long rollout in little room."""
    prompt_length: int
    """Ids of the prompt; the rest was generated."""
    logprobs: "array[float]"
    requested_model: str | None
    has_tools: bool
    signals: Mapping[str, str]
    system_text: str
    message_count: int
    opening: str
    """Hash of the leading system messages and the tools: what an agent keeps from conversation to conversation."""
    context: str
    choice: int
    constrained: tuple[str, ...]
    delivered_at: float | None
    """When a client last took the whole reply."""
    is_undelivered: bool
    """Whether every client that read it is known not to have got it whole."""
    document: JsonObject
    """What else is passed on, as recorded."""

    @property
    def was_passed_on_without_ids(self) -> bool:
        """Whether the harness got a reply of which no row can tell; one that failed for want of ids it never got."""
        return self.document["state"] == "done" and self.unusable is not None

    @property
    def generated(self) -> int:
        """How many ids were sampled."""
        return len(self.logprobs)

    def extends(self, other: "CallFacts") -> bool:
        """Whether this prompt begins with all that the other call read and said."""
        return len(other.tokens) <= self.prompt_length * ID_BYTES and self.tokens.startswith(other.tokens)


PASSED_ON = ("state", "segments", "outcome", "finish_reason", "prefix", "failure", "engine")


def read_calls(documents: Iterable[JsonObject], first: int = 0) -> tuple[CallFacts, ...]:
    """The calls in the order in which they were reserved, which is the order of the documents.

    `first` is the number of calls that were read before, where they come in pages.
    """
    return tuple(_read(order, document) for order, document in enumerate(documents, first))


def _read(order: int, document: JsonObject) -> CallFacts:
    parent = document["parent"] or {}
    unusable = _unusable(document)
    prompt = () if unusable else document["prompt_token_ids"]
    completion = () if unusable else document["completion_token_ids"]
    leading = _leading(document["messages"] or ())
    return CallFacts(
        order=order,
        call_id=CallId(document["call_id"]),
        request_id=document["request_id"],
        unusable=unusable,
        parent_outcome=parent.get("outcome") or "unresolved",
        parent_reason=parent.get("reason") or "no_outcome_yet",
        parent_id=parent.get("call_id") if parent.get("outcome") == "resolved" else None,
        tokens=pack_ids(prompt) + pack_ids(completion),
        prompt_length=len(prompt),
        logprobs=array("d", () if unusable else document["logprobs"]),
        requested_model=document["requested_model"] or None,
        has_tools=bool(document["has_tools"]),
        signals=document["lane_signals"] or {},
        system_text="\n".join(_text(message) for message in leading),
        message_count=len(document["messages"] or ()),
        opening=digest([[_text(message) for message in leading], _tools(document)]),
        context=document["context"],
        choice=document["seed"]["choice"],
        constrained=tuple((document["sampling"] or {}).get("constrained") or ()),
        delivered_at=_delivered_at(document["deliveries"]),
        is_undelivered=_is_undelivered(document["deliveries"]),
        document={name: document[name] for name in PASSED_ON},
    )


def _tools(document: JsonObject) -> Any:
    """The tools as the engine saw them: in a client's own form marks may move from one to the other."""
    return (document.get("chat_request") or document["request"] or {}).get("tools") or []


def _unusable(document: JsonObject) -> str | None:
    match document["state"]:
        case "done":
            return None if _is_whole(document) else "missing_ids"
        case "failed":
            return str((document["failure"] or {}).get("kind") or "failed")
        case "late":
            return "late"
        case _:
            return "no_outcome_yet"


def _is_whole(document: JsonObject) -> bool:
    """Whether ids and logprobs are there, aligned, and numbers."""
    prompt, completion = document["prompt_token_ids"], document["completion_token_ids"]
    logprobs = document["logprobs"]
    if not (document["capture"] or {}).get("complete") or not prompt or completion is None or logprobs is None:
        return False
    return len(completion) == len(logprobs) and all(map(_is_number, logprobs))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _leading(messages: Sequence[JsonObject]) -> list[JsonObject]:
    found = list[JsonObject]()
    for message in messages:
        if message.get("role") not in SYSTEM_ROLES:
            break
        found.append(message)
    return found


def _text(message: JsonObject) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _delivered_at(deliveries: Sequence[JsonObject]) -> float | None:
    ends = [one["ended_at"] for one in deliveries if one["outcome"] == "delivered" and one["ended_at"]]
    return max(map(clock.seconds_of, ends), default=None)


def _is_undelivered(deliveries: Sequence[JsonObject]) -> bool:
    return bool(deliveries) and all(one["outcome"] in {"client_gone", "error_told", "broken"} for one in deliveries)
