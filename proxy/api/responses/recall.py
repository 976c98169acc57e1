"""What a body refers to instead of saying it: an earlier response, or one item of it, by id.

Looked up among the calls of the caller's own rollout; what was asked with `store: false` is not found.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from proxy.api.responses.names import request_of_item, request_of_response
from proxy.api.responses.output import recorded_items
from proxy.errors import BadAsk
from proxy.model import JsonObject, RolloutId
from proxy.record.store import Store

# Each is looked up in the store.
MOST_REFERENCES = 200

Recalled: TypeAlias = Mapping[str, JsonObject]
"""The calls that a body refers to, as `rollpin.call/1` documents by request id."""


async def recall(body: JsonObject, rollout_id: RolloutId, store: Store) -> Recalled:
    """The calls that a body refers to, those that there are."""
    names = referred(body)
    if len(names) > MOST_REFERENCES:
        raise BadAsk(f"at most {MOST_REFERENCES} responses may be referred to", param="input")
    found = {name: await find_response(name, rollout_id, store) for name in names}
    return {name: call for name, call in found.items() if call is not None}


async def find_response(request_id: str, rollout_id: RolloutId, store: Store) -> JsonObject | None:
    """The call behind a response that the rollout asked for, and asked to be kept."""
    calls = await store.request_calls(rollout_id, request_id)
    return next((call for call in calls if call["api"] == "responses" and is_kept(call)), None)


def is_kept(call: JsonObject) -> bool:
    """Whether its client wants to find it again; one whose request is not on record yet is not refused."""
    return (call["request"] or {}).get("store") is not False


def referred(body: JsonObject) -> tuple[str, ...]:
    """The requests that a body refers to, each once."""
    previous, given = body.get("previous_response_id"), body.get("input")
    told = [request_of_response(previous)] if isinstance(previous, str) else []
    items = given if isinstance(given, list) else []
    told += [request_of_item(item["id"]) for item in items if is_reference(item)]
    return tuple(dict.fromkeys(name for name in told if name))


def is_reference(item: Any) -> bool:
    """Whether an item stands for another; the type may be left out."""
    return (
        isinstance(item, dict)
        and isinstance(item.get("id"), str)
        and (item.get("type") == "item_reference" or set(item) == {"id"})
    )


def earlier_messages(body: JsonObject, recalled: Recalled) -> list[JsonObject]:
    """The conversation up to and with the response that a body goes on from, without that one's instructions."""
    name = body.get("previous_response_id")
    if name is None:
        return []
    if not isinstance(name, str):
        raise BadAsk("previous_response_id must be text", param="previous_response_id")
    call = recalled.get(request_of_response(name) or "")
    if call is None or call["state"] != "done":
        raise BadAsk(
            f"previous_response_id: this rollout has no completed response {name[:80]!r} that was to be kept",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    own_instructions = 1 if call["request"].get("instructions") else 0
    return [*call["messages"][own_instructions:], replied(call)]


def replied(call: JsonObject) -> JsonObject:
    """A recorded reply as a client would echo it."""
    known = {name: call["message"][name] for name in ("role", "content", "tool_calls") if name in call["message"]}
    reasoning = call["engine_message"].get("reasoning")
    return known | ({"reasoning_content": reasoning} if reasoning else {})


def spelled_out(items: Sequence[Any], recalled: Recalled) -> list[Any]:
    """Items, with those in the place of references that they stand for."""
    return [_referred_item(index, item, recalled) if is_reference(item) else item for index, item in enumerate(items)]


def _referred_item(index: int, item: JsonObject, recalled: Recalled) -> JsonObject:
    call = recalled.get(request_of_item(item["id"]) or "")
    items = recorded_items(call) if call is not None and call["state"] == "done" else []
    found = next((one for one in items if one["id"] == item["id"]), None)
    if found is None:
        raise BadAsk(
            f"input[{index}]: no response of this rollout has an item {item['id'][:80]!r}",
            code="item_not_found",
            param=f"input[{index}].id",
        )
    return found
