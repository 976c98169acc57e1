"""The canonical form of a conversation: what it means, whatever spelling the client chose.

Two requests have the same context exactly when the model would be asked the same thing: message texts, roles, tool
calls by name and argument values, tools and template arguments. Left out on purpose: tool-call ids (order of
appearance stands for them), reasoning (clients drop, rename and trim it), white space around assistant text, nulls and
unknown keys (clients add and lose them), headers and times.
"""

import hashlib
import marshal
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.canonical import canonical_json, digest, strict_json
from proxy.model import RENDERER_ARGUMENTS, Conversation, JsonObject

HISTORY_START = "rollpin-history-1"
CONTEXT_MARK = "rollpin-context-1"

# Messages of some hundred long rollouts, 300 bytes each.
MOST_LINKS = 100_000
# The last version of the format without references, so that equal values have equal bytes.
PLAIN_MARSHAL = 2

# Arguments of the chat template that change the prompt.
TEMPLATE_FIELDS = ("chat_template_kwargs", "reasoning_effort", "continue_final_message", "documents")


def read_conversation(messages: Sequence[JsonObject], body: Mapping[str, Any]) -> Conversation:
    """Hash a chat-form conversation message by message.

    `messages` are the settled ones (volatile lines fixed); tools and template arguments come from `body`.
    """
    chain = read_history(messages)
    tools_hash = digest(_without_nulls(body.get("tools") or []))
    template_hash = digest(template_arguments(body))
    return Conversation(
        history=chain,
        tools_hash=tools_hash,
        template_hash=template_hash,
        context=digest([CONTEXT_MARK, chain[-1], tools_hash, template_hash]),
        has_assistant=any(message.get("role") == "assistant" for message in messages),
    )


def read_history(messages: Sequence[JsonObject]) -> tuple[str, ...]:
    """Chain hash after 0, 1, … n messages; what an earlier request began with is looked up rather than worked out."""
    numbers = CallNumbers()
    chain = [hashlib.sha256(HISTORY_START.encode()).hexdigest()]
    spelling = b""
    for message in messages:
        # By the exact spelling of all that stands before it, since raw call ids count in the order of their appearance.
        spelling = hashlib.sha256(spelling + marshal.dumps(message, PLAIN_MARSHAL)).digest()
        if (known := _links.get(spelling)) is None:
            before = len(numbers.names)
            link = _link(chain[-1], canonical_message(message, numbers))
            _links.put(spelling, (link, tuple(numbers.names[before:])))
        else:
            link, names = known
            numbers.learn(names)
        chain.append(link)
    return tuple(chain)


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
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def learn(self, names: Sequence[str]) -> None:
        for name in names:
            self.number(name)

    def number(self, call_id: object) -> int | None:
        if not isinstance(call_id, str):
            return None
        if call_id not in self._numbers:
            self._numbers[call_id] = len(self.names)
            self.names.append(call_id)
        return self._numbers[call_id]


class LinkMemory:
    """Chain hashes of histories that were read lately, by their spelling; forgets the longest unused. For any thread.

    A conversation of 400 messages costs a sixth with it: every later request of a rollout repeats the earlier ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._links: OrderedDict[bytes, tuple[str, tuple[str, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, spelling: bytes) -> tuple[str, tuple[str, ...]] | None:
        with self._lock:
            if (link := self._links.get(spelling)) is not None:
                self._links.move_to_end(spelling)
            return link

    def put(self, spelling: bytes, link: tuple[str, tuple[str, ...]]) -> None:
        with self._lock:
            self._links[spelling] = link
            if len(self._links) > self._most:
                self._links.popitem(last=False)


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


_links = LinkMemory(MOST_LINKS)
