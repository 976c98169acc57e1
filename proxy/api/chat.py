"""Chat completions as harnesses speak them: a body becomes an Ask, a reply becomes the body or events they expect.

What a client gets is built anew from known fields: no token ids, no logprobs unless it asked, the model name it asked
for, reasoning under one name.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from proxy.api.chat_form import ask_in_chat_form
from proxy.api.forms import openai_stream_error
from proxy.echo import tool_call_id
from proxy.errors import ProxyError
from proxy.model import Ask, Completion, Identity, JsonObject
from proxy.running import Head
from proxy.settings import Settings

USAGE_FIELDS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
)
STREAM_END = b"data: [DONE]\n\n"


def read_ask(identity: Identity, body: JsonObject, settings: Settings) -> Ask:
    """Check a client's body and take from it what the turn needs; raises BadAsk naming the field."""
    return ask_in_chat_form(identity, "chat", body, body, settings)


class ChatView:
    """One reply as one client sees it."""

    heartbeat = b": still working\n\n"

    def __init__(self, ask: Ask, head: Head, reasoning_field: str) -> None:
        self._ask = ask
        self._plans = head.plans
        self._reasoning_field = reasoning_field
        self._numbers: dict[tuple[int, int], int] = {}
        """Tool calls of a choice by order of appearance, which the record counts by too."""
        self._head = {
            "id": f"chatcmpl-{head.request_id}",
            "created": int(head.created_at),
            "model": ask.requested_model or head.model,
        }

    def chunks(self, choice: int, event: JsonObject) -> Iterator[bytes]:
        """The client's events for one of the engine's: one, or none where it carried nothing for clients."""
        for said in event.get("choices") or ():
            shown = self._choice(choice, said)
            if shown["delta"] or shown["finish_reason"] or shown.get("logprobs"):
                yield self._chunk(choices=[shown])

    def stream_end(self, completions: Sequence[Completion]) -> bytes:
        """What closes a stream that came to its end."""
        if not self._ask.include_usage:
            return STREAM_END
        return self._chunk(choices=[], usage=merged_usage(completions)) + STREAM_END

    def stream_error(self, error: ProxyError) -> bytes:
        """What closes a stream that did not."""
        return _event(openai_stream_error(error))

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The body of an unstreamed reply."""
        choices = [
            {
                "index": index,
                "message": completion.message,
                "logprobs": self._whole_logprobs(completion),
                "finish_reason": completion.finish_reason,
            }
            for index, completion in enumerate(completions)
        ]
        body = {**self._head, "object": "chat.completion", "choices": choices, "usage": merged_usage(completions)}
        return json.dumps(body).encode()

    def _choice(self, index: int, said: JsonObject) -> JsonObject:
        shown: JsonObject = {
            "index": index,
            "delta": dict(self._delta(index, said.get("delta") or said.get("message") or {})),
            "finish_reason": said.get("finish_reason"),
        }
        if self._ask.wants_logprobs and said.get("logprobs"):
            shown["logprobs"] = {"content": said["logprobs"].get("content"), "refusal": None}
        return shown

    def _delta(self, choice: int, said: JsonObject) -> Iterator[tuple[str, Any]]:
        """A delta, or a whole message as one."""
        for name in ("role", "content", "refusal"):
            if said.get(name) is not None:
                yield name, said[name]
        reasoning = said.get("reasoning") or said.get("reasoning_content") or said.get(self._reasoning_field)
        if reasoning:
            yield self._reasoning_field, reasoning
        if pieces := said.get("tool_calls"):
            yield "tool_calls", [self._piece(choice, position, piece) for position, piece in enumerate(pieces)]

    def _piece(self, choice: int, position: int, piece: JsonObject) -> JsonObject:
        """One piece of a tool call, under the id that this proxy gives it."""
        index = self._number(choice, piece.get("index"), position)
        shown: JsonObject = {"index": index}
        if piece.get("id"):
            shown |= {"id": self._call_id(choice, index, piece["id"]), "type": "function"}
        if function := piece.get("function"):
            shown["function"] = {
                name: function[name] for name in ("name", "arguments") if function.get(name) is not None
            }
        return shown

    def _number(self, choice: int, index: object, position: int) -> int:
        key = (choice, index if isinstance(index, int) else position)
        known = sum(1 for seen, _index in self._numbers if seen == choice)
        return self._numbers.setdefault(key, known)

    def _call_id(self, choice: int, index: int, said: str) -> str:
        """A recorded message has the derived id already."""
        return tool_call_id(self._plans[choice], index) if self._plans else said

    def _whole_logprobs(self, completion: Completion) -> JsonObject | None:
        if not self._ask.wants_logprobs:
            return None
        return {"content": list(completion.logprob_entries), "refusal": None}

    def _chunk(self, **fields: Any) -> bytes:
        return _event({**self._head, "object": "chat.completion.chunk", **fields})


def merged_usage(completions: Sequence[Completion]) -> JsonObject:
    """Usage over all choices: the prompt counts once, the replies add up."""
    usages = [completion.usage or {} for completion in completions]
    if len(usages) == 1:
        return {name: usages[0][name] for name in USAGE_FIELDS if usages[0].get(name) is not None}
    prompt = usages[0].get("prompt_tokens") or 0
    sampled = sum(usage.get("completion_tokens") or 0 for usage in usages)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _event(payload: JsonObject) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"
