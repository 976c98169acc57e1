"""A reply as one client of the Responses API sees it.

In a stream, items open and grow as the engine speaks, and none is done before the record is durable. So a harness never
acts on a call that is not on record, and of a stream that breaks off it keeps nothing: its next try asks the same.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from proxy.api.forms import stream_message
from proxy.api.responses.output import (
    Asked,
    call_item,
    ended_response,
    logprob,
    message_item,
    output_items,
    reasoning_item,
    response_error,
    said_in,
    status_of,
    text_part,
)
from proxy.api.responses.stream import ItemStream, empty, empty_part
from proxy.api.responses.tools import read_tools
from proxy.echo import tool_call_id
from proxy.errors import ProxyError
from proxy.model import Ask, Completion, JsonObject
from proxy.running import Head


class ResponsesView:
    """One reading of a reply."""

    heartbeat = b": still working\n\n"

    def __init__(self, ask: Ask, head: Head, reasoning_field: str) -> None:
        model = ask.requested_model or head.model
        self._asked = Asked(head.request_id, head.created_at, model, ask.body, read_tools(ask.body.get("tools")))
        self._plans = head.plans
        self._reasoning_field = reasoning_field
        self._wants_logprobs = ask.wants_logprobs
        self._stream = ItemStream()
        self._numbers: dict[int, int] = {}
        """Calls by order of appearance, which the record counts by too."""
        self._calls: dict[int, JsonObject] = {}
        """Items of the calls that were opened, by number."""

    def chunks(self, choice: int, event: JsonObject) -> Iterator[bytes]:  # noqa: ARG002  this API has one choice
        """What an event adds to the items; in a stream nothing is silent before the first."""
        if told := self._begin():
            yield told
        for said in event.get("choices") or ():
            yield from self._grow(said.get("delta") or said.get("message") or {}, said.get("logprobs"))

    def stream_end(self, completions: Sequence[Completion]) -> bytes:
        """All items done, and the response with them."""
        (completion,) = completions
        told = self._begin() + b"".join(map(self._stream.close, self._items(completion)))
        response = self._response(completion, self._stream.done_items)
        return told + self._stream.event(f"response.{response['status']}", response=response)

    def stream_error(self, error: ProxyError) -> bytes:
        """The error, and a response that failed: some clients look for one, some for the other."""
        message = stream_message(error)
        failed = self._asked.response("failed", error=response_error(error.status, message))
        told = self._begin() + self._stream.event("error", code=error.code, message=message, param=error.param)
        return told + self._stream.event("response.failed", response=failed)

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The body of an unstreamed reply."""
        (completion,) = completions
        return json.dumps(self._response(completion, self._items(completion))).encode()

    def _begin(self) -> bytes:
        if self._stream.has_begun:
            return b""
        response = self._asked.response("in_progress")
        events = ("response.created", "response.in_progress")
        return b"".join(self._stream.event(kind, response=response) for kind in events)

    def _items(self, completion: Completion) -> list[JsonObject]:
        logprobs = completion.logprob_entries if self._wants_logprobs else ()
        said = said_in(completion.message, completion.engine_message, logprobs)
        return output_items(said, self._asked, status_of(completion.finish_reason))

    def _response(self, completion: Completion, items: Sequence[JsonObject]) -> JsonObject:
        return ended_response(self._asked, items, completion.finish_reason, completion.usage)

    def _grow(self, delta: JsonObject, logprobs: Any) -> Iterator[bytes]:
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or delta.get(self._reasoning_field)
        if reasoning:
            yield self._open_and_grow("reasoning_text", reasoning_item(reasoning, self._asked), reasoning)
        if text := delta.get("content"):
            entries = (logprobs or {}).get("content") or () if self._wants_logprobs else ()
            item = message_item([text_part(text)], self._asked)
            yield self._open_and_grow("output_text", item, text, logprobs=[logprob(entry) for entry in entries])
        for position, piece in enumerate(delta.get("tool_calls") or ()):
            if told := self._grow_call(position, piece):
                yield told

    def _open_and_grow(self, kind: str, item: JsonObject, delta: str, **fields: Any) -> bytes:
        opened = self._stream.open(empty(item), empty_part(item))
        return opened + self._stream.grow(kind, item, delta, content_index=0, **fields)

    def _grow_call(self, position: int, piece: JsonObject) -> bytes:
        """A call opens once it has a name. Free text comes inside JSON: it is told at the end, in one piece."""
        index = piece.get("index")
        number = self._numbers.setdefault(index if isinstance(index, int) else position, len(self._numbers))
        function, told = piece.get("function") or {}, b""
        if function.get("name") and number not in self._calls:
            call = {"id": self._call_id(number, piece), "function": {"name": function["name"], "arguments": ""}}
            self._calls[number] = call_item(call, number, self._asked)
            told = self._stream.open(self._calls[number])
        item = self._calls.get(number, {})
        if function.get("arguments") and item.get("type") == "function_call":
            told += self._stream.grow("function_call_arguments", item, function["arguments"])
        return told

    def _call_id(self, number: int, piece: JsonObject) -> str:
        """A recorded message has the derived id already."""
        return tool_call_id(self._plans[0], number) if self._plans else str(piece["id"])
