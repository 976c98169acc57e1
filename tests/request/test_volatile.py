"""Volatile lines: what a harness changes on each request does not change the conversation."""

import re

import pytest

from proxy.request.volatile import VolatileRule, settle_volatile
from tests import make

BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=8f3a1"
FIXED = "x-anthropic-billing-header: fixed"


def system(content: object, role: str = "system") -> dict[str, object]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("role", ["system", "developer"])
def test_claude_codes_billing_line_is_put_to_a_fixed_value(role: str) -> None:
    """One changing line at the top breaks every shared prefix."""
    (settled,), found = settle_volatile([system(f"{BILLING}\nYou are helpful.", role)])

    assert settled["content"] == f"{FIXED}\nYou are helpful."
    assert [(line.message, line.rule, line.original) for line in found] == [(0, "claude-code-billing-header", BILLING)]


def test_lines_inside_text_parts_are_settled_too() -> None:
    """Anthropic clients send the system text in blocks."""
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    (settled,), found = settle_volatile([system([{"type": "text", "text": BILLING}, image, {"type": "text"}])])

    assert settled["content"] == [{"type": "text", "text": FIXED}, image, {"type": "text"}]
    assert len(found) == 1


@pytest.mark.parametrize("message", [make.user(BILLING), make.assistant(BILLING), {"role": "tool", "content": BILLING}])
def test_what_the_user_or_a_tool_says_is_left_alone(message: dict[str, object]) -> None:
    """Only the harness's own words have volatile lines."""
    assert settle_volatile([message]) == ((message,), ())


@pytest.mark.parametrize("text", [f"see {BILLING}", "x-anthropic-billing", "", "an x-anthropic-billing-header: 1"])
def test_a_line_must_match_from_its_start(text: str) -> None:
    """Nothing is taken for volatile because it mentions the header."""
    (settled,), found = settle_volatile([system(text)])

    assert (settled["content"], found) == (text, ())


def test_the_clients_message_is_not_changed() -> None:
    """Values are immutable; the record keeps what was sent."""
    message = system(BILLING)
    settle_volatile([message])

    assert message == system(BILLING)


def test_a_replacement_is_literal() -> None:
    """A rule's text may hold backslashes."""
    rule = VolatileRule("date", re.compile(r"^Today: .*$", re.MULTILINE), r"Today: \1 \g<0>")
    (settled,), _ = settle_volatile([system("Today: Monday")], [rule])

    assert settled["content"] == r"Today: \1 \g<0>"
