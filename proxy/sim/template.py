"""The toy chat template: messages and tools in, the model's prompt text out, with each engine's own habits."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


class Unrenderable(ValueError):
    """The messages can't be made into a prompt."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Where the two engines prepare the same messages differently before templating."""

    reasoning_fields: tuple[str, ...]
    """Which of an assistant message's fields count as its reasoning; the first one present wins."""
    part_joint: str
    """What goes between the text parts of a content list."""
    refuses_bad_arguments: bool
    """Refuse tool-call arguments that are no JSON object, instead of rendering an empty one."""
    tool_extras: Json = field(default_factory=dict)
    """What the engine adds to every tool's function."""
    trailing_assistant_role: str = "assistant"
    """The role under which a last assistant message is rendered when it isn't to be continued."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be rendered."""

    messages: tuple[Json, ...]
    tools: tuple[Json, ...] = ()
    thinking: bool = True
    add_generation_prompt: bool = True
    continue_final: bool = False


def print_call(name: str, arguments: str) -> str:
    """A tool call as the model writes it."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def print_turn(reasoning: str | None, content: str, calls: Iterable[tuple[str, str]]) -> str:
    """An assistant turn as the model writes it, which is also how the template renders it back."""
    thought = "" if reasoning is None else f"<think>{reasoning}</think>"
    return thought + content + "\n".join(print_call(name, arguments) for name, arguments in calls)


def render(prompt: Prompt, habits: Habits) -> str:
    """The whole prompt text."""
    messages = list(prompt.messages)
    if not messages:
        raise Unrenderable("there are no messages")
    text = [_system(messages, prompt.tools, habits)]
    last = len(messages) - 1
    for place in range(len(messages)):
        open_ended = prompt.continue_final and place == last
        text.append(_turn(messages, place, habits, open_ended=open_ended))
    if prompt.add_generation_prompt and not prompt.continue_final:
        text.append("<|im_start|>assistant\n" + ("" if prompt.thinking else "<think></think>"))
    return "".join(text)


def _system(messages: list[Json], tools: Sequence[Json], habits: Habits) -> str:
    """The system turn, taken off the front of the messages; tools go in as one JSON line each."""
    content = ""
    if messages[0].get("role") == "system":
        content = content_text(messages.pop(0), habits)
    elif not tools:
        return ""
    if tools:
        lines = "\n".join(json.dumps(_with_extras(tool, habits), ensure_ascii=False) for tool in tools)
        content += f"\n\n# Tools\n{lines}"
    return f"<|im_start|>system\n{content}<|im_end|>\n"


def _with_extras(tool: Json, habits: Habits) -> Json:
    return {**tool, "function": {**tool.get("function", {}), **habits.tool_extras}}


def _turn(messages: Sequence[Json], place: int, habits: Habits, *, open_ended: bool) -> str:
    message = messages[place]
    role = message.get("role", "user")
    if role == "tool":
        return _tool_result(messages, place, habits)
    if role != "assistant":
        return f"<|im_start|>{role}\n{content_text(message, habits)}<|im_end|>\n"
    if place == len(messages) - 1 and not open_ended:
        role = habits.trailing_assistant_role
    body = print_turn(_reasoning(message, habits), content_text(message, habits), _calls(message, habits))
    return f"<|im_start|>{role}\n{body}" + ("" if open_ended else "<|im_end|>\n")


def _tool_result(messages: Sequence[Json], place: int, habits: Habits) -> str:
    """One result; neighbouring results share one user turn."""
    is_tool = [m.get("role") == "tool" for m in messages]
    head = "" if place and is_tool[place - 1] else "<|im_start|>user"
    tail = "" if place + 1 < len(messages) and is_tool[place + 1] else "<|im_end|>\n"
    return f"{head}\n<tool_response>\n{content_text(messages[place], habits)}\n</tool_response>{tail}"


def content_text(message: Mapping[str, Any], habits: Habits) -> str:
    """A message's text, whether given as a string, as parts or not at all."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return habits.part_joint.join(part.get("text", "") for part in content)


def _reasoning(message: Json, habits: Habits) -> str | None:
    for name in habits.reasoning_fields:
        if message.get(name) is not None:
            return str(message[name])
    return None


def _calls(message: Json, habits: Habits) -> list[tuple[str, str]]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [(f["name"], _arguments(f.get("arguments"), habits)) for f in functions]


def _arguments(written: Any, habits: Habits) -> str:
    """Arguments as the template prints them: parsed and dumped anew."""
    try:
        value = json.loads(written) if isinstance(written, str) else written
    except ValueError:
        value = None
        problem = "Assistant tool call function.arguments must be valid JSON."
    else:
        problem = "Assistant tool call function.arguments must be a JSON object."
    if not isinstance(value, dict):
        if habits.refuses_bad_arguments:
            raise Unrenderable(problem)
        value = {}
    return json.dumps(value, ensure_ascii=False)
