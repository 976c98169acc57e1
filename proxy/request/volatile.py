"""Volatile lines: text that a harness changes on each request though it means nothing.

Left alone, one such line at the top gives every call of a rollout another context and breaks every shared prefix.
A line that a rule matches is put to a fixed value, for matching and for what the engine sees, and recorded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.model import JsonObject, VolatileLine

RULED_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class VolatileRule:
    """A named pattern over one line of a system text, and what the line becomes."""

    name: str
    pattern: re.Pattern[str]
    replacement: str


# Claude Code opens its system text with a billing header whose build suffix differs from request to request.
BUILT_IN_RULES = (
    VolatileRule(
        "claude-code-billing-header",
        re.compile(r"^x-anthropic-billing-header:.*$", re.MULTILINE),
        "x-anthropic-billing-header: fixed",
    ),
)


def settle_volatile(
    messages: Sequence[JsonObject], rules: Sequence[VolatileRule] = BUILT_IN_RULES
) -> tuple[tuple[JsonObject, ...], tuple[VolatileLine, ...]]:
    """The messages with volatile lines at their fixed value, and what stood there."""
    found: list[VolatileLine] = []
    settled = tuple(_settle_message(i, message, rules, found) for i, message in enumerate(messages))
    return settled, tuple(found)


def _settle_message(
    index: int, message: JsonObject, rules: Sequence[VolatileRule], found: list[VolatileLine]
) -> JsonObject:
    if message.get("role") not in RULED_ROLES:
        return message
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _settle_text(index, content, rules, found)}
    if isinstance(content, list):
        return {**message, "content": [_settle_part(index, part, rules, found) for part in content]}
    return message


def _settle_part(index: int, part: Any, rules: Sequence[VolatileRule], found: list[VolatileLine]) -> Any:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {**part, "text": _settle_text(index, part["text"], rules, found)}
    return part


def _settle_text(index: int, text: str, rules: Sequence[VolatileRule], found: list[VolatileLine]) -> str:
    for rule in rules:
        found.extend(VolatileLine(index, rule.name, match.group()) for match in rule.pattern.finditer(text))
        text = rule.pattern.sub(lambda _match, rule=rule: rule.replacement, text)  # type: ignore[misc]
    return text
