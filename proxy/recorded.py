"""A reply out of the store, for a repeat that claims it: read like one that is still growing."""

from collections.abc import Sequence
from typing import Any

from proxy import clock
from proxy.model import CallId, Completion, Failure, JsonObject, Outcome, Tokens
from proxy.running import Head, Running


def recorded_reply(calls: Sequence[JsonObject]) -> Running | None:
    """The reply that these `rollpin.call/1` documents, one per choice, hold; None unless all are done."""
    if not calls or any(call["state"] != "done" for call in calls):
        return None
    first = calls[0]
    head = Head(
        request_id=first["request_id"],
        call_ids=tuple(CallId(call["call_id"]) for call in calls),
        created_at=clock.seconds_of(first["timing"]["asked_at"]),
        model=first["engine"]["model"],
    )
    running = Running(head)
    for call in calls:
        running.publish(call["seed"]["choice"], whole_event(call))
    running.end(tuple(completion_of(call) for call in calls))
    return running


def outcome_of(call: JsonObject) -> Outcome:
    """How a call ended, out of its document."""
    return completion_of(call) if call["state"] == "done" else Failure(**call["failure"])


def whole_event(call: JsonObject) -> JsonObject:
    """The reply as an engine's whole reply would look, under the names that clients know."""
    choice: JsonObject = {"index": 0, "message": call["message"], "finish_reason": call["finish_reason"]}
    if call["top_logprobs"]:
        choice["logprobs"] = {"content": call["top_logprobs"]}
    return {"choices": [choice]}


def completion_of(call: JsonObject) -> Completion:
    return Completion(
        tokens=Tokens(_tuple(call["prompt_token_ids"]), _tuple(call["completion_token_ids"]), _tuple(call["logprobs"])),
        finish_reason=call["finish_reason"],
        message=call["message"],
        engine_message=call["engine_message"],
        usage=call["usage"],
        matched_stop=call["matched_stop"],
        logprob_entries=_tuple(call["top_logprobs"]),
    )


def _tuple(values: Sequence[Any] | None) -> tuple[Any, ...]:
    return tuple(values or ())
