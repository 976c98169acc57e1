"""The types of the fields that go to an engine as the client wrote them: a wrong one is refused here, by name.

What a value means is the engine's business; that it has the right form is checked before anything is written down.
"""

from collections.abc import Callable, Mapping
from typing import Any

from proxy.errors import BadAsk
from proxy.model import JsonObject


def check_fields(body: JsonObject) -> None:
    """Raise BadAsk where a field that is passed on has a value of another type."""
    for name, (fits, wanted) in FIELDS.items():
        value = body.get(name)
        if value is not None and not fits(value):
            raise BadAsk(f"{name} must be {wanted}, not {str(value)[:40]!r}", param=name)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_tool_choice(value: object) -> bool:
    return isinstance(value, str | dict)


def _list_of(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(fits(item) for item in value)


def _is_tool(value: object) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("parameters"), dict | None)
        and isinstance(function.get("description"), str | None)
    )


def _is_bias(value: object) -> bool:
    return isinstance(value, dict) and all(
        key.isascii() and key.isdigit() and isinstance(bias, int | float) and not isinstance(bias, bool)
        for key, bias in value.items()
    )


FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "tools": (_list_of(_is_tool), "a list of objects, each with a function that has a name"),
    "tool_choice": (_is_tool_choice, "text or an object"),
    "parallel_tool_calls": (_is_flag, "true or false"),
    "chat_template_kwargs": (_is_object, "an object"),
    "reasoning_effort": (_is_text, "text"),
    "continue_final_message": (_is_flag, "true or false"),
    "documents": (_list_of(_is_object), "a list of objects"),
    "stream_options": (_is_object, "an object"),
    "response_format": (_is_object, "an object"),
    "structured_outputs": (_is_object, "an object"),
    "regex": (_is_text, "text"),
    "ebnf": (_is_text, "text"),
    "logit_bias": (_is_bias, "an object of numbers by token id"),
    "bad_words": (_list_of(_is_text), "a list of texts"),
    "allowed_token_ids": (_list_of(_is_count), "a list of token ids"),
    "min_tokens": (_is_count, "a whole number from 0"),
}
