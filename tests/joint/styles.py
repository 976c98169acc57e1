"""How models of each family write a turn: reasoning, answer, calls. Written by hand, not rendered."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]
Call = tuple[str, Arguments]


@dataclass(frozen=True, slots=True)
class Style:
    """The text of a turn, piece by piece."""

    call: Callable[[str, Arguments], str]
    think: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    say: str = ""
    """Before the answer."""
    say_then_call: str = ""
    """Between the answer and the first call."""
    calls: tuple[str, str, str] = ("", "\n", "")
    """Before the first call, between calls, after the last."""
    after_say: str = ""
    """Behind an answer that ends a turn, before the end token."""
    marks_calls: bool = True
    """Whether a call begins with a marker, so that half a call can be told from text."""

    def reasoning(self, text: str, *, is_open: bool) -> str:
        """`is_open`: the generation prompt has opened the reasoning already."""
        return ("" if is_open else self.think[0]) + text + self.think[1]

    def answer(self, text: str, calls: Sequence[Call]) -> str:
        if not calls:
            return self.say + text + self.after_say
        return (self.say + text + self.say_then_call if text else "") + self.all_calls(calls)

    def all_calls(self, calls: Sequence[Call]) -> str:
        before, between, after = self.calls
        return before + between.join(self.call(name, arguments) for name, arguments in calls) + after


def spelt(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def hermes(name: str, arguments: Arguments) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def tagged(name: str, arguments: Arguments) -> str:
    inner = "".join(f"<parameter={key}>\n{spelt(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def keyed(name: str, arguments: Arguments) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{spelt(value)}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def quoted(name: str, arguments: Arguments) -> str:
    pairs = ",".join(
        f'{key}:<|"|>{value}<|"|>' if isinstance(value, str) else f"{key}:{json.dumps(value)}"
        for key, value in sorted(arguments.items())
    )
    return f"<|tool_call>call:{name}{{{pairs}}}<tool_call|>"


def channelled(name: str, arguments: Arguments) -> str:
    return f" to=functions.{name}<|channel|>commentary json<|message|>{json.dumps(arguments)}"


def invoked(name: str, arguments: Arguments) -> str:
    inner = "".join(
        f'<atem:parameter name="{key}">{spelt(value)}</atem:parameter>\n' for key, value in arguments.items()
    )
    block = f'<atem:function_calls>\n<atem:invoke name="{name}">\n{inner}</atem:invoke>\n</atem:function_calls>'
    return f" to={name}<|message|>{block}"


def fenced(name: str, arguments: Arguments) -> str:
    return (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```<｜tool▁call▁end｜>"
    )


def pythonic(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def bare(name: str, arguments: Arguments) -> str:
    return f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}'


def numbered(name: str, arguments: Arguments) -> str:
    return f"{name}[ARGS]{json.dumps(arguments)}"


HERMES = Style(hermes)
TAGGED = Style(tagged)
SPACED = Style(hermes, say=" ")
BARE = Style(bare, marks_calls=False)
RESPONSE = Style(hermes, after_say="<|END_RESPONSE|>")
KEYED = Style(keyed, think=("\n<think>", "</think>"), say="\n")
QUOTED = Style(quoted, think=("<|channel>thought\n", "\n<channel|>"), calls=("", "", ""))
CHANNELLED = Style(
    channelled,
    think=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    say="<|channel|>final<|message|>",
    say_then_call="<|end|><|start|>assistant",
    calls=("", "<|call|><|start|>assistant", ""),
)
INVOKED = Style(
    invoked,
    think=(" to=self<|message|>", "<|eom|><|start|>assistant"),
    say=" to=user<|message|>",
    say_then_call="<|eom|><|start|>assistant",
    calls=("", "<|eom|><|start|>assistant", ""),
)
FENCED = Style(fenced, calls=("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"))
PYTHONIC = Style(pythonic, think=("<think>", "</think>"), calls=("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"))
NUMBERED = Style(numbered, calls=("[TOOL_CALLS]", "[TOOL_CALLS]", ""))
