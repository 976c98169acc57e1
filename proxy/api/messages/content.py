"""The content of a reply as blocks: out of a whole message, or block by block while it grows."""

import base64
import hashlib
from collections.abc import Iterator, Sequence

from proxy.api.messages.inputs import input_text, tool_input
from proxy.echo import tool_call_id
from proxy.model import JsonObject, Plan

THINKING_MARK = "rollpin-thinking-1"
# While a call's input is held, each so many events an empty piece shows that it is growing. Pings would not do: SDKs
# swallow them, and the watch over a silent stream stands behind the SDK.
EVENTS_PER_SIGN_OF_LIFE = 32
DELTAS = {"thinking": "thinking_delta", "text": "text_delta"}


def signature_of(thinking: str) -> str:
    """What clients must find on a thinking block, or they do not echo it; the same for the same text.

    It is not checked when it comes back: the thoughts of another model are as much part of a prompt.
    """
    mark = hashlib.sha256(f"{THINKING_MARK}\n{thinking}".encode("utf-8", "surrogatepass"))
    return base64.b64encode(mark.digest()).decode()


def message_blocks(message: JsonObject, reasoning_field: str, *, shows_thinking: bool) -> list[JsonObject]:
    """The content of a whole reply: thoughts, text and calls, each where there is any."""
    blocks: list[JsonObject] = []
    thinking = message.get(reasoning_field)
    if thinking and shows_thinking:
        blocks.append({"type": "thinking", "thinking": thinking, "signature": signature_of(thinking)})
    if text := text_of(message):
        blocks.append({"type": "text", "text": text})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        blocks.append(_begun_call(call["id"], function["name"]) | {"input": tool_input(function["arguments"])})
    return blocks


def text_of(said: JsonObject) -> str:
    """The words of a message or of a delta; a refusal is words too."""
    return (said.get("content") or "") + (said.get("refusal") or "")


class BlockWriter:
    """Events of the blocks of one growing reply, one block after the other.

    Thoughts and text go out as they come. From its first call on a reply is held, but for that call's name: the rest is
    written out of the whole message.
    """

    def __init__(self, plans: Sequence[Plan], reasoning_field: str, *, shows_thinking: bool) -> None:
        self._plans = plans
        self._reasoning_field = reasoning_field
        self._shows_thinking = shows_thinking
        self._count = 0
        self._open: str | None = None
        self._said = {"thinking": "", "text": ""}
        self._in_block = ""
        self._held = 0
        """Events since the first call began."""

    def take(self, delta: JsonObject) -> Iterator[JsonObject]:
        """Events for a delta, or for a whole message as one."""
        if not self._held:
            yield from self._grow("thinking", self._thinking(delta))
            yield from self._grow("text", text_of(delta))
        if self._held or delta.get("tool_calls"):
            yield from self._hold(delta.get("tool_calls") or ())

    def finish(self, message: JsonObject) -> Iterator[JsonObject]:
        """Events for all that was held."""
        calls = message.get("tool_calls") or ()
        for place, call in enumerate(calls):
            if place or self._open != "tool_use":
                yield from self._start("tool_use", _begun_call(call["id"], call["function"]["name"]))
            yield self._delta({"type": "input_json_delta", "partial_json": input_text(call["function"]["arguments"])})
        yield from self._grow("thinking", self._unsaid("thinking", self._thinking(message)))
        yield from self._grow("text", self._unsaid("text", text_of(message)))
        yield from self._stop()

    def _thinking(self, said: JsonObject) -> str:
        if not self._shows_thinking:
            return ""
        return said.get("reasoning") or said.get("reasoning_content") or said.get(self._reasoning_field) or ""

    def _unsaid(self, kind: str, whole: str) -> str:
        return whole[len(self._said[kind]) :]

    def _grow(self, kind: str, text: str) -> Iterator[JsonObject]:
        if not text:
            return
        if self._open != kind:
            yield from self._start(kind, {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
        self._said[kind] += text
        self._in_block += text
        yield self._delta({"type": DELTAS[kind], kind: text})

    def _hold(self, pieces: Sequence[JsonObject]) -> Iterator[JsonObject]:
        self._held += 1
        name = (pieces[0].get("function") or {}).get("name") if pieces else None
        if self._open != "tool_use" and name:
            call_id = tool_call_id(self._plans[0], 0) if self._plans else pieces[0]["id"]
            yield from self._start("tool_use", _begun_call(call_id, name))
        elif self._open == "tool_use" and self._held % EVENTS_PER_SIGN_OF_LIFE == 0:
            yield self._delta({"type": "input_json_delta", "partial_json": ""})

    def _start(self, kind: str, block: JsonObject) -> Iterator[JsonObject]:
        yield from self._stop()
        self._open, self._in_block = kind, ""
        yield {"type": "content_block_start", "index": self._count, "content_block": block}

    def _stop(self) -> Iterator[JsonObject]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": signature_of(self._in_block)})
        self._open = None
        yield {"type": "content_block_stop", "index": self._count}
        self._count += 1

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._count, "delta": delta}


def _begun_call(call_id: str, name: str) -> JsonObject:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}
