"""A Messages conversation as chat messages: each block finds its place, or is refused by name.

Results of tools become messages of their own, before what else the user turn says: so chat wants it, whatever order
the results came in. What is said of a block besides its content (cache marks, citations) is noted and left out.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, Literal

from proxy.api.media import may_fetch
from proxy.api.messages.inputs import written_arguments
from proxy.errors import BadAsk
from proxy.model import JsonObject

ROLES = ("user", "assistant", "system")
IMAGE_TYPE = re.compile(r"image/[a-z0-9.+-]+")
# What is read of each kind of block; the rest is noted.
READ_OF_BLOCK: dict[str, frozenset[str]] = {
    "text": frozenset({"type", "text"}),
    "image": frozenset({"type", "source"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "tool_result": frozenset({"type", "tool_use_id", "content"}),
}
ALLOWED = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
    "tool_result": ("text", "image"),
}


class Talk:
    """Reads one conversation."""

    def __init__(self, media_hosts: tuple[str, ...], *, later_system: Literal["keep", "as_user"] = "keep") -> None:
        self._media_hosts = media_hosts
        self._later_system = later_system
        self.notes: set[str] = set()
        """What was left out, as `messages.name` or `system.name`."""

    def read(self, system: Any, messages: Any) -> list[JsonObject]:
        """The chat messages; raises BadAsk naming the place."""
        if messages is None:
            raise BadAsk("messages is required", param="messages")
        if not isinstance(messages, list) or not messages:
            raise BadAsk("messages must be a list of at least one message", param="messages")
        chat: list[JsonObject] = []
        if system not in (None, "", []):
            chat.append({"role": "system", "content": self._texts("system", "system", system)})
        for place, message in enumerate(messages):
            chat.extend(self._message(f"messages[{place}]", message, is_first=not chat))
        return chat

    def _message(self, where: str, message: Any, *, is_first: bool) -> list[JsonObject]:
        if not isinstance(message, dict):
            raise BadAsk(f"{where} must be an object", param=where)
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise BadAsk(f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role")
        self.notes |= {f"messages.{name}" for name in message if name not in {"role", "content"}}
        content, there = message.get("content"), f"{where}.content"
        if role == "user":
            return self._user(there, content)
        if role == "assistant":
            return [self._assistant(there, content)]
        told_as = "user" if self._later_system == "as_user" and not is_first else "system"
        return [{"role": told_as, "content": self._texts(there, "system", content)}]

    def _user(self, where: str, content: Any) -> list[JsonObject]:
        blocks = self._blocks(where, "user", content)
        results = [self._result(there, block) for there, block in blocks if block["type"] == "tool_result"]
        said = [(there, block) for there, block in blocks if block["type"] != "tool_result"]
        if results and not said:
            return results
        return [*results, {"role": "user", "content": self._content(said)}]

    def _result(self, where: str, block: JsonObject) -> JsonObject:
        call_id = block.get("tool_use_id")
        if not isinstance(call_id, str):
            raise BadAsk(f"{where}.tool_use_id must be text", param=f"{where}.tool_use_id")
        blocks = self._blocks(f"{where}.content", "tool_result", block.get("content") or [])
        return {"role": "tool", "tool_call_id": call_id, "content": self._content(blocks)}

    def _assistant(self, where: str, content: Any) -> JsonObject:
        """One turn: its thoughts, its text and its calls, each in one piece."""
        blocks = self._blocks(where, "assistant", content)
        text = "".join(_text(there, block, "text") for there, block in blocks if block["type"] == "text")
        thoughts = "".join(_text(there, block, "thinking") for there, block in blocks if block["type"] == "thinking")
        calls = [_call(there, block) for there, block in blocks if block["type"] == "tool_use"]
        message: JsonObject = {"role": "assistant", "content": text or (None if calls else "")}
        if any(block["type"] == "redacted_thinking" for _, block in blocks):
            self.notes.add("messages.redacted_thinking")
        if thoughts:
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = calls
        return message

    def _texts(self, where: str, role: str, content: Any) -> str | list[JsonObject]:
        return self._content(self._blocks(where, role, content))

    def _blocks(self, where: str, role: str, content: Any) -> list[tuple[str, JsonObject]]:
        """The blocks with their places, each of a type that may stand there."""
        if isinstance(content, str):
            return [(where, {"type": "text", "text": content})]
        if not isinstance(content, list):
            raise BadAsk(f"{where} must be text or a list of blocks", param=where)
        blocks = [(f"{where}[{place}]", block) for place, block in enumerate(content)]
        for there, block in blocks:
            self._check(there, role, block)
        return blocks

    def _check(self, where: str, role: str, block: Any) -> None:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise BadAsk(f"{where} must be an object with a type", param=where)
        kind = block["type"]
        if kind not in ALLOWED[role]:
            message = f"{where}: a block of type {kind[:60]!r} cannot be given to the model in a {role} turn"
            raise BadAsk(message, code="unsupported_content", param=where)
        field = "system" if where.startswith("system") else "messages"
        extras = block.keys() - READ_OF_BLOCK[kind]
        self.notes |= {f"{field}.{name}" for name in extras if block[name] not in (None, False)}

    def _content(self, blocks: Iterable[tuple[str, JsonObject]]) -> str | list[JsonObject]:
        """One text as a string, as most templates want it; anything else as parts."""
        parts = [self._part(where, block) for where, block in blocks]
        if not parts:
            return ""
        return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts

    def _part(self, where: str, block: JsonObject) -> JsonObject:
        if block["type"] == "text":
            return {"type": "text", "text": _text(where, block, "text")}
        return {"type": "image_url", "image_url": {"url": self._image(f"{where}.source", block.get("source"))}}

    def _image(self, where: str, source: Any) -> str:
        kind = source.get("type") if isinstance(source, dict) else None
        if kind == "url" and isinstance(source.get("url"), str):
            if not may_fetch(source["url"], self._media_hosts):
                message = f"{where}: media must come as base64, not from {source['url'][:80]!r}"
                raise BadAsk(message, code="media_url_refused", param=where)
            return str(source["url"])
        if kind != "base64":
            raise BadAsk(f"{where} must be of type base64 or url", code="unsupported_content", param=where)
        if not isinstance(source.get("media_type"), str) or not IMAGE_TYPE.fullmatch(source["media_type"]):
            raise BadAsk(f"{where}.media_type must be an image's", param=f"{where}.media_type")
        return f"data:{source['media_type']};base64,{_base64(f'{where}.data', source.get('data'))}"


def _base64(where: str, data: Any) -> str:
    try:
        base64.b64decode(data, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise BadAsk(f"{where} must be base64", param=where) from None
    return str(data)


def _text(where: str, block: JsonObject, name: str) -> str:
    if not isinstance(block.get(name), str):
        raise BadAsk(f"{where}.{name} must be text", param=f"{where}.{name}")
    return str(block[name])


def _call(where: str, block: JsonObject) -> JsonObject:
    for name in ("id", "name"):
        _text(where, block, name)
    if not isinstance(block.get("input"), dict):
        raise BadAsk(f"{where}.input must be an object", param=f"{where}.input")
    function = {"name": block["name"], "arguments": written_arguments(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}
