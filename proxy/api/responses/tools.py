"""A client's tools as functions that every chat template knows, and calls of them back in the client's own terms.

Functions inside a namespace get a name of their own; tools that take free text become functions of one text argument.
Tools that OpenAI would run itself (web search and the like) nobody runs here: the model is not shown them.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.errors import BadAsk
from proxy.model import JsonObject

# Kinds of tools that a model can be shown: it names them and says with what.
KINDS = frozenset({"function", "custom"})
FREE_TEXT = "input"
FREE_TEXT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {FREE_TEXT: {"type": "string"}},
    "required": [FREE_TEXT],
}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool that the model may call."""

    name: str
    namespace: str | None
    kind: Literal["function", "custom"]
    spec: JsonObject
    chat_name: str


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of one request."""

    tools: tuple[Tool, ...] = ()
    left_out: tuple[str, ...] = ()
    """`tools.TYPE` for each that the model is not shown."""

    def chat(self) -> list[JsonObject]:
        """The tools in chat form."""
        return [{"type": "function", "function": _function(tool)} for tool in self.tools]

    def chat_name(self, name: str, namespace: str | None = None) -> str:
        """What the model calls a tool; a name that no tool has stays as it is."""
        named = [tool for tool in self.tools if tool.name == name and namespace in (None, tool.namespace)]
        return named[0].chat_name if named else name

    def called(self, chat_name: str) -> Tool | None:
        """The tool that the model called, if it is one of these."""
        return next((tool for tool in self.tools if tool.chat_name == chat_name), None)


def read_tools(value: Any) -> Toolbox:
    """The tools of a body; raises BadAsk naming the one at fault."""
    if value is None:
        return Toolbox()
    if not isinstance(value, list):
        raise BadAsk("tools must be a list of objects", param="tools")
    leaves = [leaf for index, tool in enumerate(value) for leaf in _leaves(f"tools[{index}]", tool)]
    known = [(namespace, spec) for namespace, spec in leaves if spec["type"] in KINDS]
    taken = Counter(spec["name"] for _namespace, spec in known)
    tools = tuple(_tool(namespace, spec, is_shared=taken[spec["name"]] > 1) for namespace, spec in known)
    left_out = dict.fromkeys(f"tools.{spec['type']}" for _namespace, spec in leaves if spec["type"] not in KINDS)
    return Toolbox(tools, tuple(left_out))


def read_choice(value: Any, tools: Toolbox) -> Any:
    """`tool_choice` in chat form; raises BadAsk for choices among tools that are not there."""
    if value is None or (isinstance(value, str) and value in {"auto", "none", "required"}):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise BadAsk("tool_choice must be auto, none, required, or name one function", param="tool_choice")
    name = tools.chat_name(value["name"], value.get("namespace"))
    if tools.called(name) is None:
        raise BadAsk(f"tool_choice names {value['name'][:80]!r}, which is none of the tools", param="tool_choice")
    return {"type": "function", "function": {"name": name}}


def free_text(arguments: str) -> str:
    """What the model put into a tool that takes free text; all that it wrote where it did not keep to the form."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    text = value.get(FREE_TEXT) if isinstance(value, dict) and set(value) == {FREE_TEXT} else None
    return text if isinstance(text, str) else arguments


def _leaves(where: str, tool: Any, namespace: str | None = None) -> Iterator[tuple[str | None, JsonObject]]:
    """The tools that one entry stands for, each with its namespace: itself, or those inside it."""
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        raise BadAsk(f"{where} must be an object with a type", param=where)
    if tool["type"] != "namespace":
        if tool["type"] in KINDS:
            _check(where, tool)
        yield namespace, tool
        return
    inner = tool.get("tools")
    if namespace or not isinstance(tool.get("name"), str) or not isinstance(inner, list):
        raise BadAsk(f"{where}: a namespace has a name and a list of tools, and stands in no other", param=where)
    for index, one in enumerate(inner):
        yield from _leaves(f"{where}.tools[{index}]", one, tool["name"])


def _check(where: str, tool: JsonObject) -> None:
    if not isinstance(tool.get("name"), str):
        raise BadAsk(f"{where} needs a name", param=f"{where}.name")
    wanted: Mapping[str, tuple[type, str]] = {
        "description": (str, "text"),
        "parameters": (dict, "an object"),
        "strict": (bool, "true or false"),
    }
    for name, (kind, told) in wanted.items():
        if tool.get(name) is not None and not isinstance(tool[name], kind):
            raise BadAsk(f"{where}.{name} must be {told}", param=f"{where}.{name}")


def _tool(namespace: str | None, spec: JsonObject, *, is_shared: bool) -> Tool:
    name = spec["name"]
    chat_name = f"{namespace}__{name}" if namespace and is_shared else name
    return Tool(name, namespace, "custom" if spec["type"] == "custom" else "function", spec, chat_name)


def _function(tool: Tool) -> JsonObject:
    """As a chat client would write it; `strict` only where it constrains."""
    function: JsonObject = {"name": tool.chat_name}
    if tool.spec.get("description") is not None:
        function["description"] = tool.spec["description"]
    if tool.kind == "custom":
        return function | {"parameters": FREE_TEXT_SCHEMA}
    if tool.spec.get("parameters") is not None:
        function["parameters"] = tool.spec["parameters"]
    return function | ({"strict": True} if tool.spec.get("strict") else {})


def shown_tools(value: Sequence[Any]) -> list[Any]:
    """The tools as a response tells them: functions with the two fields that readers require."""
    return [_shown(tool) for tool in value]


def _shown(tool: Any) -> Any:
    is_function = isinstance(tool, dict) and tool.get("type") == "function"
    return {"parameters": None, "strict": False, **_without_nulls(tool)} if is_function else tool


def _without_nulls(tool: JsonObject) -> JsonObject:
    return {name: value for name, value in tool.items() if value is not None}
