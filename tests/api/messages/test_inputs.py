"""A call's arguments as an object: what parses is what the model wrote, and what does not is never lost."""

import json
from typing import Any

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.messages.inputs import DEEPEST_INPUT, UNPARSED, input_text, tool_input, written_arguments
from proxy.request.conversation import canonical_arguments

BROKEN = ['{"command": "echo hi', "not JSON", "[1]", '"text"', "5", "null", '{"a": NaN}', '{"a": 1e999}', "{} {}"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON: Any = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("arguments", ["", " ", "{}", " { }\n"])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    """A tool without parameters."""
    assert (tool_input(arguments), input_text(arguments)) == ({}, "{}")


def test_an_object_is_sent_as_the_model_wrote_it() -> None:
    """Spelling and all, where text is sent."""
    assert tool_input('{ "b":1.0,\n "a":"\\u00e9" }') == {"b": 1.0, "a": "é"}
    assert input_text('{ "b":1.0,\n "a":"\\u00e9" }') == '{ "b":1.0,\n "a":"\\u00e9" }'


@pytest.mark.parametrize("arguments", [*BROKEN, '{"a": "\\ud800"}', nested(DEEPEST_INPUT + 2)])
def test_what_is_no_object_comes_in_claude_codes_wrapper(arguments: str) -> None:
    """And out of it again as it was."""
    wrapped = tool_input(arguments)

    assert wrapped == {UNPARSED: {"raw": arguments, "len": len(arguments)}}
    assert json.loads(input_text(arguments)) == wrapped
    assert written_arguments(wrapped) == arguments


@pytest.mark.parametrize("value", [{UNPARSED: "x"}, {UNPARSED: {"len": 1}}, {UNPARSED: {"raw": "x"}, "more": 1}])
def test_what_only_looks_like_the_wrapper_is_an_input_like_any_other(value: dict[str, Any]) -> None:
    """Nothing of it is dropped."""
    assert json.loads(written_arguments(value)) == value


@given(value=JSON)
def test_an_echo_means_what_was_said(value: Any) -> None:
    """Whatever the model wrote, by the rule that finds parents."""
    said = json.dumps(value)

    assert canonical_arguments(written_arguments(tool_input(said))) == canonical_arguments(said)


@given(said=st.text(alphabet='{}[]":,0aé\\ud8', max_size=30) | JSON.map(json.dumps))
def test_clients_parse_what_is_streamed(said: str) -> None:
    """With the parser that Anthropic's SDK puts pieces together with."""
    assert jiter.from_json(input_text(said).encode(), partial_mode=True) == tool_input(said)
