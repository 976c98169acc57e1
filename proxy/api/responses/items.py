"""Input items as chat messages.

The items of one reply (reasoning, message, calls) are one assistant message. A part that cannot follow what the message
already holds begins the next one: nothing that a client echoes is dropped, and nothing is taken for one reply that
need not be.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from proxy.api.responses.sealed import unseal
from proxy.api.responses.tools import FREE_TEXT, Toolbox
from proxy.errors import BadAsk
from proxy.model import JsonObject

ROLES = frozenset({"user", "system", "developer", "assistant"})
TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal"})
LOCAL_SHELL = "local_shell"


class Messages:
    """The conversation while items are read into it."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools
        self.told: list[JsonObject] = []
        self._reply: JsonObject | None = None
        """The assistant message that the next item may belong to."""

    def add(self, where: str, item: Any) -> None:
        """Take in one item; raises BadAsk naming it."""
        if not isinstance(item, dict):
            raise BadAsk(f"{where} must be an object", param=where)
        kind = item.get("type") or ("message" if "role" in item else None)
        read = READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise BadAsk(f"{where}: items of type {str(kind)[:80]!r} have no place in a conversation here", param=where)
        read(self, where, item)

    def message(self, where: str, item: JsonObject) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise BadAsk(f"{where}.role must be one of {', '.join(sorted(ROLES))}", param=f"{where}.role")
        content = read_content(f"{where}.content", item.get("content"))
        if role == "assistant":
            self._reply_without("content", "tool_calls")["content"] = _one_text(f"{where}.content", content)
        else:
            self._say({"role": role, "content": content})

    def reasoning(self, where: str, item: JsonObject) -> None:
        self._reply_without("reasoning_content", "content", "tool_calls")["reasoning_content"] = read_reasoning(
            where, item
        )

    def function_call(self, where: str, item: JsonObject) -> None:
        self._call(where, item, _text(where, item, "arguments"))

    def custom_tool_call(self, where: str, item: JsonObject) -> None:
        self._call(where, item, json.dumps({FREE_TEXT: _text(where, item, "input")}))

    def local_shell_call(self, where: str, item: JsonObject) -> None:
        action = item.get("action")
        if not isinstance(action, dict):
            raise BadAsk(f"{where}.action must be an object", param=f"{where}.action")
        self._call(where, {**item, "name": LOCAL_SHELL}, json.dumps(action))

    def output(self, where: str, item: JsonObject) -> None:
        content = read_content(f"{where}.output", item.get("output"))
        self._say({"role": "tool", "tool_call_id": _call_id(where, item), "content": content})

    def _call(self, where: str, item: JsonObject, arguments: str) -> None:
        namespace = item.get("namespace")
        name = self._tools.chat_name(_text(where, item, "name"), namespace if isinstance(namespace, str) else None)
        function = {"name": name, "arguments": arguments}
        call = {"id": _call_id(where, item), "type": "function", "function": function}
        self._reply_without().setdefault("tool_calls", []).append(call)

    def _reply_without(self, *later: str) -> JsonObject:
        """The assistant message to add a part to: the one at hand, unless it holds what comes with or after it."""
        if self._reply is None or any(name in self._reply for name in later):
            self._reply = {"role": "assistant"}
            self.told.append(self._reply)
        return self._reply

    def _say(self, message: JsonObject) -> None:
        self._reply = None
        self.told.append(message)


READERS: Mapping[str, Callable[[Messages, str, JsonObject], None]] = {
    "message": Messages.message,
    "reasoning": Messages.reasoning,
    "function_call": Messages.function_call,
    "custom_tool_call": Messages.custom_tool_call,
    "local_shell_call": Messages.local_shell_call,
    "function_call_output": Messages.output,
    "custom_tool_call_output": Messages.output,
    "local_shell_call_output": Messages.output,
}


def read_content(where: str, value: Any) -> str | list[JsonObject]:
    """Content in chat form; a single part that is text is that text."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise BadAsk(f"{where} must be text or a list of parts", param=where)
    parts = [_part(f"{where}[{index}]", part) for index, part in enumerate(value)]
    is_one_text = len(parts) == 1 and "text" in parts[0]
    return parts[0]["text"] if is_one_text else parts or ""


def read_reasoning(where: str, item: JsonObject) -> str:
    """What was thought: out of our own seal, else as told, else its summary."""
    told, summed_up = ("\n".join(_texts(where, item, name)) for name in ("content", "summary"))
    sealed = unseal(item.get("encrypted_content"))
    return sealed if sealed is not None else told or summed_up


def _part(where: str, part: Any) -> JsonObject:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in TEXT_PARTS:
        return {"type": "text", "text": _text(where, part, "refusal" if kind == "refusal" else "text")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") is not None else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
        return {"type": "input_audio", "input_audio": part["input_audio"]}
    raise BadAsk(f"{where}: parts are input_text, output_text, or input_image with an image_url", param=where)


def _one_text(where: str, content: str | list[JsonObject]) -> str:
    """The parts of an assistant's message are one text; chat has no more for it."""
    if isinstance(content, str):
        return content
    if any("text" not in part for part in content):
        raise BadAsk(f"{where}: an assistant says text alone", param=where)
    return "".join(part["text"] for part in content)


def _texts(where: str, item: JsonObject, name: str) -> Iterator[str]:
    parts = item.get(name)
    if not isinstance(parts, list | None) or not all(isinstance(part, dict) for part in parts or ()):
        raise BadAsk(f"{where}.{name} must be a list of parts", param=f"{where}.{name}")
    for part in parts or ():
        yield _text(f"{where}.{name}", part, "text")


def _text(where: str, item: JsonObject, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise BadAsk(f"{where}.{name} must be text", param=f"{where}.{name}")
    return value


def _call_id(where: str, item: JsonObject) -> str:
    """The id that ties a call to its output; local shells were known by their item's id alone."""
    return _text(where, item if item.get("call_id") is not None else {"call_id": item.get("id")}, "call_id")
