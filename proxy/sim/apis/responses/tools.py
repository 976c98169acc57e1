"""The tools of a Responses body: functions, functions in a namespace, and tools that take free text."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from proxy.sim.template import Json

FREE_TEXT = "input"
FREE_TEXT_SCHEMA = {"type": "object", "properties": {FREE_TEXT: {"type": "string"}}, "required": [FREE_TEXT]}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool that can be shown to a model."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None
    spec: Json

    @property
    def chat_name(self) -> str:
        """What the model calls it: in a namespace as vLLM has it."""
        return self.name if self.namespace is None else f"{self.namespace}__{self.name}"

    @property
    def in_chat(self) -> Json:
        """As chat knows tools."""
        schema = FREE_TEXT_SCHEMA if self.kind == "custom" else self.spec.get("parameters") or {}
        described = {"description": self.spec["description"]} if self.spec.get("description") else {}
        return {"type": "function", "function": {"name": self.chat_name, **described, "parameters": schema}}


def tools_of(body: Json) -> tuple[Tool, ...]:
    """Those that a model can be shown; what only OpenAI can run is left out."""
    return tuple(_tools(body.get("tools") or ()))


def called(tools: Iterable[Tool], chat_name: str) -> Tool | None:
    """The tool that a model called."""
    return next((tool for tool in tools if tool.chat_name == chat_name), None)


def chat_name(call: Json) -> str:
    """What the model calls the tool of a call, or of a choice."""
    return str(call["name"]) if call.get("namespace") is None else f"{call['namespace']}__{call['name']}"


def choice_in_chat(choice: Any) -> Any:
    """A tool by its name, or a mode."""
    if isinstance(choice, dict):
        return {"type": "function", "function": {"name": chat_name(choice)}} if "name" in choice else "auto"
    return choice


def wrapped(text: str) -> str:
    """Free text as the arguments of a function."""
    return json.dumps({FREE_TEXT: text}, ensure_ascii=False)


def unwrapped(arguments: str) -> str:
    """The free text out of them; all of it where the model wrote something else."""
    try:
        return str(json.loads(arguments)[FREE_TEXT])
    except (ValueError, KeyError, TypeError):
        return arguments


def _tools(given: Iterable[Json], namespace: str | None = None) -> Iterator[Tool]:
    for tool in given:
        match tool["type"]:
            case "function" | "custom" as kind:
                yield Tool(kind, tool["name"], namespace, tool)
            case "namespace":
                yield from _tools(tool["tools"], tool["name"])
