"""A reply as the items of a `response`, and as the numbered events that tell of them."""

from collections.abc import Iterator
from typing import Any, Literal

from proxy.sim.apis.pieces import Ending, Piece
from proxy.sim.apis.responses.sealed import is_wanted, seal
from proxy.sim.apis.responses.tools import called, tools_of, unwrapped
from proxy.sim.ask import Ask
from proxy.sim.template import Json

Status = Literal["in_progress", "completed", "incomplete", "failed"]
ENDED: dict[str | None, Status] = {"length": "incomplete", "abort": "failed"}
"""By chat's finish reason; any other completes the response."""
SAID = {"reasoning": "reasoning", "content": "message"}
UNTOLD = {"description": None, "parameters": None, "strict": None}
"""What a function need not say of itself."""
BESIDE_TEXT: dict[str, Json] = {"reasoning": {}, "message": {"logprobs": []}}
"""What the events of an item's text have beside it."""
TOLD_AGAIN: Json = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "temperature": None,
    "tool_choice": "auto",
    "top_p": None,
}
"""Fields of the body that the response repeats, with what they are where the body leaves them out."""


class Items:
    """One `response`, as far as it has been told."""

    def __init__(self, ask: Ask) -> None:
        self._ask, self._tools = ask, tools_of(ask.sent)
        self._output: list[Json] = []
        self._is_open = False
        self._arguments = ""
        self._number = 0

    def begin(self) -> Iterator[Json]:
        """The empty response, twice."""
        yield self._event("created", response=self._response("in_progress"))
        yield self._event("in_progress", response=self._response("in_progress"))

    def tell(self, piece: Piece) -> Iterator[Json]:
        """A delta, and what closes one item and opens the next where it belongs to another."""
        if piece.kind == "call":
            yield from self._close()
            yield from self._open(self._call(piece))
        elif piece.kind == "arguments":
            self._arguments += piece.text
            if self._item["type"] == "function_call":
                yield self._grown("function_call_arguments", piece.text)
        else:
            kind = SAID[piece.kind]
            if not self._is_open or self._item["type"] != kind:
                yield from self._close()
                yield from self._open(self._words(kind))
            part = self._item["content"][0]
            part["text"] += piece.text
            yield self._grown(part["type"], piece.text, content_index=0, **BESIDE_TEXT[kind])

    def end(self, ending: Ending) -> Iterator[Json]:
        """The close of the last item, and the response as it is now."""
        status = ENDED.get(ending.finish, "completed")
        yield from self._close("completed" if status == "completed" else "incomplete")
        fields = {
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "error": {"code": "server_error", "message": "Generation aborted"} if status == "failed" else None,
            "usage": _usage(ending.usage) if ending.usage else None,
        }
        yield self._event(status, response=self._response(status, **fields))

    def failed(self, message: str, *, number: int) -> Json:
        """The event that ends a broken stream."""
        self._number = number
        error = {"code": "server_error", "message": message}
        return self._event("failed", response=self._response("failed", error=error))

    @property
    def _item(self) -> Json:
        return self._output[-1]

    def _event(self, kind: str, /, **fields: Any) -> Json:
        event = {"type": f"response.{kind}", "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _of_item(self, kind: str, /, **fields: Any) -> Json:
        return self._event(kind, item_id=self._item["id"], output_index=len(self._output) - 1, **fields)

    def _grown(self, name: str, delta: str, **fields: Any) -> Json:
        return self._of_item(f"{name}.delta", delta=delta, **fields)

    def _words(self, kind: str) -> Json:
        if kind == "reasoning":
            return {"type": kind, "id": self._id("rs"), "summary": [], "content": [_part("reasoning_text")]}
        return {"type": kind, "id": self._id("msg"), "role": "assistant", "content": [_part("output_text")]}

    def _call(self, piece: Piece) -> Json:
        tool = called(self._tools, piece.text)
        named: Json = {"call_id": piece.call_id, "name": tool.name if tool else piece.text}
        if tool and tool.namespace is not None:
            named["namespace"] = tool.namespace
        if tool and tool.kind == "custom":
            return {"type": "custom_tool_call", "id": self._id("ctc"), **named, "input": ""}
        return {"type": "function_call", "id": self._id("fc"), **named, "arguments": ""}

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._ask.id}_{len(self._output)}"

    def _open(self, item: Json) -> Iterator[Json]:
        self._output.append({**item, "status": "in_progress"})
        self._is_open, self._arguments = True, ""
        shown = {**self._item, "content": []} if "content" in item else dict(self._item)
        yield self._event("output_item.added", output_index=len(self._output) - 1, item=shown)
        if "content" in item:
            yield self._of_item("content_part.added", content_index=0, part=dict(item["content"][0]))

    def _close(self, status: Status = "completed") -> Iterator[Json]:
        if not self._is_open:
            return
        self._is_open, item = False, self._item
        item["status"] = status
        yield from self._close_inside(item)
        if item["type"] == "reasoning" and is_wanted(self._ask.sent):
            item["encrypted_content"] = seal(item["content"][0]["text"])
        yield self._event("output_item.done", output_index=len(self._output) - 1, item=item)

    def _close_inside(self, item: Json) -> Iterator[Json]:
        match item["type"]:
            case "function_call":
                item["arguments"] = self._arguments
                yield self._of_item("function_call_arguments.done", name=item["name"], arguments=self._arguments)
            case "custom_tool_call":
                item["input"] = unwrapped(self._arguments)
                yield self._grown("custom_tool_call_input", item["input"])
                yield self._of_item("custom_tool_call_input.done", input=item["input"])
            case _:
                part = item["content"][0]
                beside = BESIDE_TEXT[item["type"]]
                yield self._of_item(f"{part['type']}.done", content_index=0, text=part["text"], **beside)
                yield self._of_item("content_part.done", content_index=0, part=part)

    def _response(self, status: Status, **fields: Any) -> Json:
        body = self._ask.sent
        return {
            "id": f"resp_{self._ask.id}",
            "object": "response",
            "created_at": self._ask.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._ask.model,
            "output": list(self._output),
            "tools": [{**UNTOLD, **tool} for tool in body.get("tools") or () if tool["type"] == "function"],
            "usage": None,
            **{name: usual if body.get(name) is None else body[name] for name, usual in TOLD_AGAIN.items()},
            **fields,
        }


def _part(kind: str) -> Json:
    return {"type": kind, "text": "", **({"annotations": []} if kind == "output_text" else {})}


def _usage(usage: Json) -> Json:
    """Chat's counts under this API's names."""
    thoughts = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thoughts},
        "total_tokens": usage["total_tokens"],
    }
