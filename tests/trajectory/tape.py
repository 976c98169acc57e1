"""Call documents for assembly tests, made without a store; a test names only what it is about."""

from collections.abc import Sequence
from typing import Any

from proxy import clock
from proxy.model import JsonObject
from tests import make

LOGPROB = -0.25


class Tape:
    """The calls of one rollout, in order of reservation."""

    def __init__(self) -> None:
        self.calls = list[JsonObject]()

    def root(self, prompt: Sequence[int], said: Sequence[int], **fields: Any) -> JsonObject:
        """A first turn."""
        parent = {"call_id": None, "outcome": "root", "reason": "first_turn"}
        return self.call(prompt, said, **{"parent": parent, **fields})

    def child(self, of: JsonObject, more: Sequence[int], said: Sequence[int], **fields: Any) -> JsonObject:
        """A turn that goes on from a call, by meaning and by tokens."""
        return self.broken(of, [*ids_of(of), *more], said, **fields)

    def broken(self, of: JsonObject, prompt: Sequence[int], said: Sequence[int], **fields: Any) -> JsonObject:
        """A turn that goes on from a call by meaning, whatever its prompt."""
        return self.call(prompt, said, parent=resolved(of), **{"lane_signals": of["lane_signals"], **fields})

    def lost(self, prompt: Sequence[int], said: Sequence[int], reason: str = "no_match", **fields: Any) -> JsonObject:
        """A turn whose parent was not found."""
        parent = {"call_id": None, "outcome": "unresolved", "reason": reason}
        return self.call(prompt, said, **{"parent": parent, **fields})

    def call(self, prompt: Sequence[int], said: Sequence[int], **fields: Any) -> JsonObject:
        """One whole, delivered call with tools."""
        number = len(self.calls)
        made = {**document(number, prompt, said), **fields}
        self.calls.append(made)
        return made


def document(number: int, prompt: Sequence[int], said: Sequence[int]) -> JsonObject:
    """A `rollpin.call/1` document as far as assembly reads it."""
    end = clock.iso(make.STARTED_AT + number)
    return {
        "schema": "rollpin.call/1",
        "call_id": f"c{number}",
        "request_id": f"q{number}",
        "state": "done",
        "lane_signals": {},
        "parent": None,
        "deliveries": [{"started_at": end, "ended_at": end, "claim": None, "outcome": "delivered", "events": 3}],
        "requested_model": "policy",
        "has_tools": True,
        "sampling": {"constrained": []},
        "seed": {"value": 1000 + number, "source": "minted", "occurrence": 0, "choice": 0, "client_seed": None},
        "context": f"context {number}",
        "prompt_token_ids": list(prompt),
        "completion_token_ids": list(said),
        "logprobs": [LOGPROB - place for place in range(len(said))],
        "segments": [{"start": 0, "end": len(said), "seed": 1000 + number, "weight_version": "7", "engine": "e1"}],
        "finish_reason": "stop",
        "prefix": prefix("first_turn"),
        "failure": None,
        "engine": {"name": "e1", "kind": "vllm", "model": "policy", "fingerprint": "print"},
        "capture": {"complete": True, "gaps": []},
        "messages": [{"role": "system", "content": "You are an agent."}, make.user()],
        "request": {"tools": [{"type": "function"}]},
        "outcome": None,
    }


def prefix(reason: str, *, eligible: bool = False, requested: bool = False, supplied: bool = False) -> JsonObject:
    """What became of a call's exact prefix."""
    told = {"eligible": eligible, "requested": requested, "supplied": supplied, "length": 5 if requested else 0}
    return {**told, "reason": reason, "detail": "", "drift_at": 2 if supplied else None, "parent_length": 3}


def ids_of(call: JsonObject) -> list[int]:
    """All that a call read and said."""
    return [*call["prompt_token_ids"], *call["completion_token_ids"]]


def resolved(parent: JsonObject) -> JsonObject:
    return {"call_id": parent["call_id"], "outcome": "resolved", "reason": "one_match"}


def failed(kind: str = "engine_cut") -> JsonObject:
    """Fields of a call that broke off."""
    return {"state": "failed", "failure": {"kind": kind}, "deliveries": undelivered("error_told")}


def without_ids() -> JsonObject:
    """Fields of a reply that came without ids."""
    nothing = dict.fromkeys(("prompt_token_ids", "completion_token_ids", "logprobs"))
    return {**nothing, "capture": {"complete": False, "gaps": ["no_ids"]}}


def undelivered(outcome: str = "client_gone") -> list[JsonObject]:
    at = clock.iso(make.STARTED_AT)
    return [{"started_at": at, "ended_at": at, "claim": None, "outcome": outcome, "events": 1}]


def choice(number: int, of: JsonObject) -> JsonObject:
    """Fields of another choice of a call's request."""
    return {
        "request_id": of["request_id"],
        "context": of["context"],
        "seed": {**of["seed"], "choice": number},
        "deliveries": of["deliveries"],
        "lane_signals": of["lane_signals"],
    }


def title_call() -> JsonObject:
    """Fields of a call that asks the main model for a title."""
    return {
        "has_tools": False,
        "messages": [{"role": "system", "content": "You write the Title of a chat."}, make.user()],
        "request": {},
    }
