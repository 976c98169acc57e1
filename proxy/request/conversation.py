"""The canonical form of a conversation: what it means, whatever spelling the client chose.

Two requests have the same context exactly when the model would be asked the same thing: message texts, roles, tool
calls by name and argument values, tools and template arguments. Left out on purpose: tool-call ids (order of
appearance stands for them), reasoning (clients drop, rename and trim it), white space around assistant text, nulls and
unknown keys (clients add and lose them), headers and times.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.canonical import canonical_json, digest, strict_json
from proxy.model import RENDERER_ARGUMENTS, Conversation, JsonObject

HISTORY_START = "rollpin-history-1"
CONTEXT_MARK = "rollpin-context-1"

# Arguments of the chat template that change the prompt.
TEMPLATE_FIELDS = ("chat_template_kwargs", "reasoning_effort", "continue_final_message", "documents")


def read_conversation(messages: Sequence[JsonObject], body: Mapping[str, Any]) -> Conversation:
    """Hash a chat-form conversation message by message.

    `messages` are the settled ones (volatile lines fixed); tools and template arguments come from `body`.
    """
    numbers = CallNumbers()
    chain = [hashlib.sha256(HISTORY_START.encode()).hexdigest()]
    for message in messages:
        chain.append(_link(chain[-1], canonical_message(message, numbers)))
    tools_hash = digest(_without_nulls(body.get("tools") or []))
    template_hash = digest(template_arguments(body))
    return Conversation(
        history=tuple(chain),
        tools_hash=tools_hash,
        template_hash=template_hash,
        context=digest([CONTEXT_MARK, chain[-1], tools_hash, template_hash]),
        has_assistant=any(message.get("role") == "assistant" for message in messages),
    )


def template_arguments(body: Mapping[str, Any]) -> JsonObject:
    """What the client sets of the chat template; `tool_choice: none` counts, since engines then hide the tools."""
    arguments = {name: body[name] for name in TEMPLATE_FIELDS if body.get(name) not in (None, False, {}, [])}
    if given := arguments.get("chat_template_kwargs"):
        arguments["chat_template_kwargs"] = {name: given[name] for name in given if name not in RENDERER_ARGUMENTS}
    if body.get("tool_choice") == "none":
        arguments["tool_choice"] = "none"
    return arguments


class CallNumbers:
    """Tool-call ids by order of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, call_id: object) -> int | None:
        if not isinstance(call_id, str):
            return None
        return self._numbers.setdefault(call_id, len(self._numbers))


def canonical_message(message: JsonObject, numbers: CallNumbers) -> JsonObject:
    """One message reduced to its meaning."""
    role = message.get("role")
    content = canonical_content(message.get("content"))
    canonical: JsonObject = {"role": role}
    if role == "assistant" and isinstance(content, str):
        content = content.strip()
    if content:
        canonical["content"] = content
    if calls := message.get("tool_calls"):
        canonical["tool_calls"] = [_canonical_call(call, numbers) for call in calls]
    if role == "tool":
        canonical["tool_call"] = numbers.number(message.get("tool_call_id"))
    if message.get("name") is not None:
        canonical["name"] = message["name"]
    return canonical


def canonical_content(content: Any) -> Any:
    """Absent, null and empty are one; a single text part is its text; other parts stay as they are, less nulls."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    parts = [_canonical_part(part) for part in content]
    if not parts:
        return ""
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def canonical_arguments(arguments: Any) -> Any:
    """Arguments as the JSON value they spell, or as raw text where they do not parse."""
    if not isinstance(arguments, str):
        return {"value": arguments}
    try:
        value = strict_json(arguments)
        canonical_json(value)
    except (ValueError, RecursionError):
        return {"raw": arguments}
    return {"value": value}


def _canonical_part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    if isinstance(part, dict):
        return {key: _without_nulls(item) for key, item in part.items() if key != "cache_control"}
    return part


def _canonical_call(call: Any, numbers: CallNumbers) -> JsonObject:
    if not isinstance(call, dict):
        return {"raw": call}
    function = call.get("function")
    spelled = function if isinstance(function, dict) else {}
    return {
        "call": numbers.number(call.get("id")),
        "name": spelled.get("name"),
        "arguments": canonical_arguments(spelled.get("arguments")),
    }


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [_without_nulls(item) for item in value]
        case _:
            return value


def _link(previous: str, message: JsonObject) -> str:
    return hashlib.sha256(previous.encode() + canonical_json(message)).hexdigest()
