"""A reply as the items and the response object that clients of the Responses API read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from proxy import clock
from proxy.api.responses.names import item_id, response_id
from proxy.api.responses.sealed import is_wanted, seal
from proxy.api.responses.tools import Toolbox, free_text, read_tools, shown_tools
from proxy.model import JsonObject

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]

# Finish reasons by which a reply was cut, as this API tells them.
CUT: dict[str | None, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}
# Fields of a request that the response tells again, with what they are where the request leaves them out.
TOLD_AGAIN: JsonObject = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a response tells of the request that it answers."""

    request_id: str
    created_at: float
    model: str
    body: JsonObject
    tools: Toolbox

    def response(self, status: Status, output: Sequence[JsonObject] = (), **fields: Any) -> JsonObject:
        """The response object; `fields` as usage, error and incomplete_details."""
        again = {
            name: self.body[name] if self.body.get(name) is not None else usual for name, usual in TOLD_AGAIN.items()
        }
        return {
            "id": response_id(self.request_id),
            "object": "response",
            "created_at": int(self.created_at),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": list(output),
            "tools": shown_tools(self.body.get("tools") or ()),
            "usage": None,
            **again,
            **fields,
        }


@dataclass(frozen=True, slots=True)
class Said:
    """What a reply is made of, as clients are told of it."""

    reasoning: str
    text: str
    calls: tuple[JsonObject, ...]
    """In chat form, under the ids that clients know."""
    logprobs: tuple[JsonObject, ...] = ()


def said_in(message: JsonObject, engine_message: JsonObject, logprobs: Sequence[Any] = ()) -> Said:
    """Out of the recorded messages: the client's has the ids, the engine's the reasoning under its one name."""
    return Said(
        engine_message.get("reasoning") or "",
        message.get("content") or "",
        tuple(message.get("tool_calls") or ()),
        tuple(map(logprob, logprobs)),
    )


def output_items(said: Said, asked: Asked, status: Status) -> list[JsonObject]:
    """The items of a reply; where it was cut, the last one is what was cut."""
    items = list(_items(said, asked))
    for item in items:
        if item["type"] != "custom_tool_call":
            item["status"] = "completed"
    if items and status == "incomplete" and "status" in items[-1]:
        items[-1]["status"] = "incomplete"
    return items


def call_item(call: JsonObject, number: int, asked: Asked) -> JsonObject:
    """A call of the model's, in terms of the client's own tools."""
    function = call["function"]
    tool = asked.tools.called(function["name"])
    named: JsonObject = {"call_id": call["id"], "name": tool.name if tool else function["name"]}
    if tool and tool.namespace is not None:
        named["namespace"] = tool.namespace
    if tool and tool.kind == "custom":
        text = free_text(function["arguments"])
        return {"type": "custom_tool_call", "id": item_id("ctc", asked.request_id, number), **named, "input": text}
    item = {"type": "function_call", "id": item_id("fc", asked.request_id, number), **named}
    return item | {"arguments": function["arguments"]}


def reasoning_item(text: str, asked: Asked) -> JsonObject:
    """What was thought, in full; sealed as well for clients that echo only that."""
    content = [{"type": "reasoning_text", "text": text}]
    item = {"type": "reasoning", "id": item_id("rs", asked.request_id), "summary": [], "content": content}
    return item | ({"encrypted_content": seal(text)} if is_wanted(asked.body) else {})


def text_part(text: str, logprobs: Sequence[JsonObject] = ()) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def message_item(parts: Sequence[JsonObject], asked: Asked) -> JsonObject:
    return {"type": "message", "id": item_id("msg", asked.request_id), "role": "assistant", "content": list(parts)}


def logprob(entry: JsonObject) -> JsonObject:
    """An engine's logprob object with the fields that this API has."""
    return {**_token(entry), "top_logprobs": [_token(one) for one in entry.get("top_logprobs") or ()]}


def status_of(finish_reason: str | None) -> Status:
    """Whether a reply ended by itself."""
    return "incomplete" if finish_reason in CUT else "completed"


def ended_response(asked: Asked, items: Sequence[JsonObject], finish_reason: str | None, usage: Any) -> JsonObject:
    """The response object of a reply that is over."""
    cut = CUT.get(finish_reason)
    details = {"reason": cut} if cut else None
    return asked.response(
        status_of(finish_reason), items, incomplete_details=details, usage=response_usage(usage or {})
    )


def response_usage(usage: JsonObject) -> JsonObject:
    """An engine's usage under this API's names; what it does not count is 0."""
    prompt, sampled = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or usage.get("reasoning_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached or 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": thought or 0},
        "total_tokens": prompt + sampled,
    }


def asked_of(call: JsonObject) -> Asked:
    """The request of a recorded call."""
    body = call["request"] or {}
    return Asked(
        call["request_id"],
        clock.seconds_of(call["timing"]["asked_at"]),
        call["requested_model"] or (call["engine"] or {}).get("model") or "",
        body,
        read_tools(body.get("tools")),
    )


def recorded_items(call: JsonObject) -> list[JsonObject]:
    """The output of a recorded call that is done."""
    said = said_in(call["message"], call["engine_message"], call["top_logprobs"] or ())
    return output_items(said, asked_of(call), status_of(call["finish_reason"]))


def recorded_response(call: JsonObject) -> JsonObject:
    """The response that a recorded call was, or how it stands."""
    asked = asked_of(call)
    match call["state"]:
        case "done":
            return ended_response(asked, recorded_items(call), call["finish_reason"], call["usage"])
        case "failed":
            failure = call["failure"]
            return asked.response("failed", error=response_error(failure["status"], failure["message"]))
        case _:
            return asked.response("in_progress")


def response_error(status: int, message: str) -> JsonObject:
    """An error inside a response, where the API has a few codes only."""
    code = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_prompt"
    return {"code": code, "message": message}


def _items(said: Said, asked: Asked) -> Iterator[JsonObject]:
    if said.reasoning:
        yield reasoning_item(said.reasoning, asked)
    if said.text:
        yield message_item([text_part(said.text, said.logprobs)], asked)
    for number, call in enumerate(said.calls):
        yield call_item(call, number, asked)


def _token(entry: JsonObject) -> JsonObject:
    return {"token": entry.get("token"), "bytes": entry.get("bytes") or [], "logprob": entry.get("logprob")}
