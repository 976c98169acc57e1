"""Tools and tool choice of a Messages body in chat form."""

from collections.abc import Sequence
from typing import Any

from proxy.errors import BadAsk
from proxy.model import JsonObject

CUSTOM = (None, "custom")
READ_OF_TOOL = frozenset({"type", "name", "description", "input_schema", "strict"})
# Anthropic's choice by chat's name for it; `tool` names one.
CHOICES: dict[object, str] = {"auto": "auto", "any": "required", "none": "none"}


def read_tools(value: Any) -> tuple[list[JsonObject], list[str]]:
    """The tools that a client defines itself, and what is left out of the rest; raises BadAsk.

    Tools that are only named by a type are known to Anthropic's own models and servers: no engine can offer them.
    """
    if value is None:
        return [], []
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise BadAsk("tools must be a list of objects", param="tools")
    custom = [(place, tool) for place, tool in enumerate(value) if tool.get("type") in CUSTOM]
    notes = [f"tools.{_shown(tool['type'])}" for tool in value if tool.get("type") not in CUSTOM]
    extras = {f"tools.{name}" for _, tool in custom for name in tool if name not in READ_OF_TOOL}
    return [_tool(place, tool) for place, tool in custom], [*notes, *sorted(extras)]


def read_tool_choice(value: Any, tools: Sequence[JsonObject]) -> JsonObject:
    """`tool_choice` and `parallel_tool_calls` as chat has them; raises BadAsk."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadAsk("tool_choice must be an object", param="tool_choice")
    choice = _choice(value, [tool["function"]["name"] for tool in tools])
    alone = value.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        where = "tool_choice.disable_parallel_tool_use"
        raise BadAsk(f"{where} must be true or false", param=where)
    if not tools:
        return {}
    return {"tool_choice": choice} | ({"parallel_tool_calls": False} if alone else {})


def _tool(place: int, tool: JsonObject) -> JsonObject:
    where = f"tools[{place}]"
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise BadAsk(f"{where}.name must be text", param=f"{where}.name")
    if not isinstance(tool.get("input_schema"), dict):
        raise BadAsk(f"{where}.input_schema must be an object", param=f"{where}.input_schema")
    if not isinstance(tool.get("description"), str | None):
        raise BadAsk(f"{where}.description must be text", param=f"{where}.description")
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(value: JsonObject, names: list[str]) -> str | JsonObject:
    kind = value.get("type")
    if kind == "tool":
        if value.get("name") not in names:
            raise BadAsk("tool_choice.name must be one of the tools offered", param="tool_choice.name")
        return {"type": "function", "function": {"name": value["name"]}}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise BadAsk("tool_choice.type must be auto, any, tool or none", param="tool_choice.type")
    if kind == "any" and not names:
        raise BadAsk("tool_choice asks for a tool, and none can be offered", param="tool_choice")
    return CHOICES[kind]


def _shown(kind: object) -> str:
    return str(kind)[:60].encode("ascii", "replace").decode()
