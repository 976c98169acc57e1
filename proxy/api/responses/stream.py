"""The events of one streamed response: numbered, its items opened as they appear and closed in the same order."""

import json
from collections.abc import Iterator
from typing import Any

from proxy.model import JsonObject


class ItemStream:
    """What a reader of the stream knows so far."""

    def __init__(self) -> None:
        self._told = 0
        self._places: dict[str, int] = {}
        """Output index of every item that was opened, by its id."""
        self._done: dict[int, JsonObject] = {}

    @property
    def has_begun(self) -> bool:
        return self._told > 0

    @property
    def done_items(self) -> list[JsonObject]:
        """The closed items by output index."""
        return [self._done[place] for place in sorted(self._done)]

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event, under the next number."""
        payload = {"type": kind, "sequence_number": self._told, **fields}
        self._told += 1
        return f"event: {kind}\ndata: ".encode() + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"

    def open(self, item: JsonObject, part: JsonObject | None = None) -> bytes:
        """Tell of an item that begins, and of its first part; nothing where that was done before."""
        if item["id"] in self._places:
            return b""
        place = self._places[item["id"]] = len(self._places)
        status = {} if item["type"] == "custom_tool_call" else {"status": "in_progress"}
        told = self.event("response.output_item.added", output_index=place, item={**item, **status})
        if part is not None:
            told += self.event("response.content_part.added", **self._where(item), content_index=0, part=part)
        return told

    def grow(self, kind: str, item: JsonObject, delta: str, **fields: Any) -> bytes:
        """Tell what is added to an open item."""
        return self.event(f"response.{kind}.delta", **self._where(item), delta=delta, **fields)

    def close(self, item: JsonObject) -> bytes:
        """Tell of a whole item that it is done."""
        told = self.open(empty(item), empty_part(item)) + b"".join(self._close_inside(item))
        place = self._places[item["id"]]
        self._done[place] = item
        return told + self.event("response.output_item.done", output_index=place, item=item)

    def _close_inside(self, item: JsonObject) -> Iterator[bytes]:
        where = self._where(item)
        match item:
            case {"content": [part]}:
                logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
                at = {**where, "content_index": 0}
                yield self.event(f"response.{part['type']}.done", **at, text=part["text"], **logprobs)
                yield self.event("response.content_part.done", **at, part=part)
            case {"arguments": arguments, "name": name}:
                yield self.event("response.function_call_arguments.done", **where, name=name, arguments=arguments)
            case {"input": text}:
                yield self.grow("custom_tool_call_input", item, text)
                yield self.event("response.custom_tool_call_input.done", **where, input=text)

    def _where(self, item: JsonObject) -> JsonObject:
        return {"item_id": item["id"], "output_index": self._places[item["id"]]}


def empty(item: JsonObject) -> JsonObject:
    """An item before anything is in it."""
    sealed = {name: value for name, value in item.items() if name not in {"encrypted_content", "status"}}
    nothing = {"content": [], "arguments": "", "input": ""}
    return sealed | {name: value for name, value in nothing.items() if name in item}


def empty_part(item: JsonObject) -> JsonObject | None:
    """The part of an item before anything is in it; calls have none."""
    match item:
        case {"content": [part]}:
            return {**part, "text": "", **({"logprobs": []} if "logprobs" in part else {})}
    return None
