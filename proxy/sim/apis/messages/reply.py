"""A reply as the blocks of a `message`, and as the events that tell of them."""

import json
from collections.abc import Iterator
from typing import Any, Literal

from proxy.sim.apis.pieces import Ending, Piece
from proxy.sim.ask import Ask
from proxy.sim.template import Json
from proxy.sim.voices import fold

BlockType = Literal["thinking", "text", "tool_use"]
BLOCKS: dict[str, BlockType] = {"reasoning": "thinking", "content": "text", "call": "tool_use", "arguments": "tool_use"}
DELTAS = {"thinking": ("thinking_delta", "thinking"), "text": ("text_delta", "text")}
REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
"""By chat's finish reason; an abort has no name here and passes for an end."""


class Blocks:
    """One `message`, as far as it has been told."""

    def __init__(self, ask: Ask) -> None:
        self.message: Json = {
            "id": f"msg_{ask.id}",
            "type": "message",
            "role": "assistant",
            "model": ask.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": len(ask.prompt), "output_tokens": 0},
        }
        self._arguments = ""
        self._is_open = False

    def begin(self) -> Iterator[Json]:
        """The empty message; a ping, as Anthropic's own servers send one."""
        yield {"type": "message_start", "message": {**self.message, "content": []}}
        yield {"type": "ping"}

    def tell(self, piece: Piece) -> Iterator[Json]:
        """A delta, and what closes one block and opens the next where it belongs to another."""
        kind = BLOCKS[piece.kind]
        if piece.kind == "call" or not self._is_open or self._block["type"] != kind:
            yield from self._stop()
            yield self._start(_empty(kind, piece))
        if piece.kind == "arguments":
            self._arguments += piece.text
            yield self._delta(type="input_json_delta", partial_json=piece.text)
        elif piece.kind != "call":
            name, field = DELTAS[kind]
            self._block[field] += piece.text
            yield self._delta(type=name, **{field: piece.text})

    def end(self, ending: Ending) -> Iterator[Json]:
        """The close of the last block, why it ended, and what it cost."""
        yield from self._stop()
        self.message |= _stop_fields(ending)
        self.message["usage"] = {
            "input_tokens": self.message["usage"]["input_tokens"],
            "output_tokens": ending.usage.get("completion_tokens", 0),
        }
        yield {"type": "message_delta", "delta": _stop_fields(ending), "usage": self.message["usage"]}
        yield {"type": "message_stop"}

    @property
    def _block(self) -> Json:
        block: Json = self.message["content"][-1]
        return block

    def _start(self, block: Json) -> Json:
        self.message["content"].append(block)
        self._is_open, self._arguments = True, ""
        return self._of_block("content_block_start", content_block=dict(block))

    def _delta(self, **delta: Any) -> Json:
        return self._of_block("content_block_delta", delta=delta)

    def _stop(self) -> Iterator[Json]:
        if not self._is_open:
            return
        if self._block["type"] == "thinking":
            self._block["signature"] = _signature(self._block["thinking"])
            yield self._delta(type="signature_delta", signature=self._block["signature"])
        if self._block["type"] == "tool_use":
            self._block["input"] = _input(self._arguments)
        self._is_open = False
        yield self._of_block("content_block_stop")

    def _of_block(self, event: str, **fields: Any) -> Json:
        return {"type": event, "index": len(self.message["content"]) - 1, **fields}


def _empty(kind: BlockType, piece: Piece) -> Json:
    match kind:
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            return {"type": "text", "text": ""}
        case "tool_use":
            return {"type": "tool_use", "id": piece.call_id, "name": piece.text, "input": {}}


def _signature(thought: str) -> str:
    """Of no meaning but that it hangs on the thought."""
    return f"{fold(thought.encode()):016x}"


def _input(arguments: str) -> Json:
    """What a call is made with; nothing where the model wrote no JSON object."""
    try:
        written = json.loads(arguments)
    except ValueError:
        return {}
    return written if isinstance(written, dict) else {}


def _stop_fields(ending: Ending) -> Json:
    if ending.finish == "stop" and isinstance(ending.matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": ending.matched}
    return {"stop_reason": REASONS.get(ending.finish or "", "end_turn"), "stop_sequence": None}
