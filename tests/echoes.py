"""How real harnesses spell what they echo: the same reply, rewritten as it was seen to be."""

import copy
import json
from collections.abc import Callable
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
Style: TypeAlias = Callable[[Message], Message]


def as_it_came(message: Message) -> Message:
    return message


def compact(message: Message) -> Message:
    return _arguments(message, lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def spaced(message: Message) -> Message:
    return _arguments(message, lambda value: json.dumps(value, indent=1))


def reordered(message: Message) -> Message:
    return _arguments(message, lambda value: json.dumps(dict(reversed(value.items()))))


def other_numbers(message: Message) -> Message:
    """2 becomes 2.0, and 2.0 becomes 2."""
    return _arguments(message, lambda value: json.dumps({key: _respelt(item) for key, item in value.items()}))


def without_reasoning(message: Message) -> Message:
    return {key: value for key, value in message.items() if key not in {"reasoning", "reasoning_content"}}


def renamed_reasoning(message: Message) -> Message:
    renamed = without_reasoning(message)
    told = message.get("reasoning_content") or message.get("reasoning")
    return renamed | ({"reasoning": told.strip()} if told else {})


def part_list(message: Message) -> Message:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if content else message


def null_content(message: Message) -> Message:
    return message if message.get("content") else {**message, "content": None}


def empty_content(message: Message) -> Message:
    return message if message.get("content") else {**message, "content": ""}


def absent_content(message: Message) -> Message:
    return message if message.get("content") else {key: message[key] for key in message if key != "content"}


def with_extras(message: Message) -> Message:
    """What SDK models add of their own."""
    return {**message, "refusal": None, "annotations": [], "audio": None, "function_call": None}


STYLES: tuple[Style, ...] = (
    as_it_came,
    compact,
    spaced,
    reordered,
    other_numbers,
    without_reasoning,
    renamed_reasoning,
    part_list,
    null_content,
    empty_content,
    absent_content,
    with_extras,
)


def _arguments(message: Message, respell: Callable[[Any], str]) -> Message:
    """The message with the arguments of its calls written otherwise; those that do not parse stay."""
    echoed = copy.deepcopy(message)
    for call in echoed.get("tool_calls") or ():
        try:
            call["function"]["arguments"] = respell(json.loads(call["function"]["arguments"]))
        except ValueError:
            continue
    return echoed


def _respelt(item: Any) -> Any:
    if isinstance(item, bool) or not isinstance(item, int | float) or item != int(item):
        return item
    return float(item) if isinstance(item, int) else int(item)
