"""What an engine does between a request and its prompt: put messages into shape, render the template, make ids.

The two ways of shaping messages are vLLM's and SGLang's: how null content, part lists, reasoning and arguments arrive
in the template. The settings of the template language are those of `transformers`, which both engines use.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from typing import Any, Literal

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from proxy.model import JsonObject

Kind = Literal["vllm", "sglang"]
# What a template can raise: its own complaints, and Python's over messages in a shape that it does not know.
COMPLAINTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)


class UnrenderableError(Exception):
    """The engine answers 400: its template will not have these messages."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A template, how messages reach it, and what else the request passes on to it."""

    template: str
    kind: Kind
    wants_parts: bool
    """Whether content reaches the template as lists of parts (vLLM makes them of strings too)."""
    parses_arguments: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Template arguments, tools, and the tokenizer's own tokens."""
    today: date = date(2026, 11, 30)

    def text(self, messages: Sequence[JsonObject], *, generation_prompt: bool = True) -> str:
        """The prompt as text. Raises UnrenderableError."""
        try:
            shaped = [SHAPES[self.kind](self, message) for message in messages]
            return _compiled(self.template).render(
                messages=shaped,
                add_generation_prompt=generation_prompt,
                strftime_now=self.today.strftime,
                **self.variables,
            )
        except COMPLAINTS as error:
            raise UnrenderableError(str(error)) from error


def _vllm(engine: Engine, message: JsonObject) -> JsonObject:
    shaped: JsonObject = {"role": message["role"], "content": _parts_of(message.get("content"))}
    if not engine.wants_parts or message["role"] == "tool":
        shaped["content"] = "\n".join(part["text"] for part in shaped["content"])
    if message["role"] == "assistant":
        if message.get("reasoning") is not None:
            shaped["reasoning"] = shaped["reasoning_content"] = message["reasoning"]
        if message.get("tool_calls"):
            shaped["tool_calls"] = _calls(engine, message)
    shaped |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key) is not None}
    return shaped


def _sglang(engine: Engine, message: JsonObject) -> JsonObject:
    shaped = {key: value for key, value in message.items() if value is not None}
    content = message.get("content") or ""
    if isinstance(content, list) and not (engine.wants_parts and message["role"] != "tool"):
        content = " ".join(part["text"] for part in content)
    shaped["content"] = content
    if "tool_calls" in shaped:
        shaped["tool_calls"] = _calls(engine, message)
    return shaped


SHAPES: dict[Kind, Callable[[Engine, JsonObject], JsonObject]] = {"vllm": _vllm, "sglang": _sglang}


def _parts_of(content: Any) -> list[JsonObject]:
    if content is None:
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _calls(engine: Engine, message: JsonObject) -> list[JsonObject]:
    if not engine.parses_arguments:
        return message["tool_calls"]
    return [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]


class _Generation(Extension):
    """The tag with which training templates mark what the model says: its body is printed as it is."""

    tags = {"generation"}  # noqa: RUF012 - the base class's own form

    def parse(self, parser: Parser) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


def _complain(message: str) -> str:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:  # noqa: FBT001 - the filter's own form
    known = {key: options[key] for key in ("indent", "separators", "sort_keys") if key in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, **known)


@cache
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _complain
    return environment.from_string(template)
