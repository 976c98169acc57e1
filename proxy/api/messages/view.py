"""A reply as a Message: whole, or as the events that clients put one together from.

The order of events is Anthropic's: message_start, then each block's start, deltas and stop, one block after the other,
then message_delta with the stop reason and message_stop. The input of calls is sent once the reply is whole: only then
is it known whether it parses.
"""

import json
from collections.abc import Iterator, Sequence

from proxy.api.forms import anthropic_error
from proxy.api.messages.content import BlockWriter, message_blocks
from proxy.errors import ProxyError
from proxy.model import Ask, Completion, JsonObject
from proxy.running import Head

STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
NO_CACHE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


class MessagesView:
    """One reply as one client sees it."""

    heartbeat = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self, ask: Ask, head: Head, reasoning_field: str) -> None:
        self._ask = ask
        self._reasoning_field = reasoning_field
        self._head = {
            "id": f"msg_{head.request_id}",
            "type": "message",
            "role": "assistant",
            "model": ask.requested_model or head.model,
        }
        self._writer = BlockWriter(head.plans, reasoning_field, shows_thinking=shows_thinking(ask))
        self._has_begun = False

    def chunks(self, choice: int, event: JsonObject) -> Iterator[bytes]:  # noqa: ARG002  there is one choice
        """The client's events for one of the engine's."""
        for said in event.get("choices") or ():
            yield from self._begin(event)
            for shown in self._writer.take(said.get("delta") or said.get("message") or {}):
                yield encode(shown)

    def stream_end(self, completions: Sequence[Completion]) -> bytes:
        """What closes a stream that came to its end: the open block, the stop reason, the usage."""
        completion = completions[0]
        ending = {
            "type": "message_delta",
            "delta": stop_fields(completion),
            "usage": usage_of(completion),
        }
        events = [*self._writer.finish(completion.message), ending, {"type": "message_stop"}]
        return b"".join([*self._begin({}), *map(encode, events)])

    def stream_error(self, error: ProxyError) -> bytes:
        """What closes a stream that did not."""
        return encode(anthropic_error(error), name="error")

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The body of an unstreamed reply."""
        completion = completions[0]
        content = message_blocks(completion.message, self._reasoning_field, shows_thinking=shows_thinking(self._ask))
        body = {**self._head, "content": content, **stop_fields(completion), "usage": usage_of(completion)}
        return json.dumps(body).encode()

    def _begin(self, event: JsonObject) -> Iterator[bytes]:
        """The first event, once; how long the prompt is, some engines tell only at the end."""
        if self._has_begun:
            return
        self._has_begun = True
        usage = {"input_tokens": len(event.get("prompt_token_ids") or ()), **NO_CACHE, "output_tokens": 0}
        message: JsonObject = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield encode({"type": "message_start", "message": message})


def shows_thinking(ask: Ask) -> bool:
    """Whether the client is to see reasoning: unless it said that there should be none."""
    wanted = ask.body.get("thinking")
    return not (isinstance(wanted, dict) and wanted.get("type") == "disabled")


def stop_fields(completion: Completion) -> JsonObject:
    """Why the reply ended, in Anthropic's words."""
    reason = STOP_REASONS.get(completion.finish_reason or "", "end_turn")
    if reason == "end_turn" and completion.message.get("tool_calls"):
        reason = "tool_use"
    stopped_by = completion.matched_stop if isinstance(completion.matched_stop, str) else None
    return {"stop_reason": "stop_sequence" if stopped_by else reason, "stop_sequence": stopped_by}


def usage_of(completion: Completion) -> JsonObject:
    """Token counts; what an engine's own cache saved is no part of this API's meaning."""
    usage = completion.usage or {}
    return {
        "input_tokens": usage.get("prompt_tokens", 0),
        **NO_CACHE,
        "output_tokens": usage.get("completion_tokens", 0),
    }


def encode(payload: JsonObject, name: str | None = None) -> bytes:
    """One event, by the name that its type is."""
    data = json.dumps(payload, separators=(",", ":")).encode()
    return b"event: " + (name or payload["type"]).encode() + b"\ndata: " + data + b"\n\n"
