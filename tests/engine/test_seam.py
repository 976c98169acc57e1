"""No seam: what was shown and what is still to be shown are together the whole message."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.fold import MessageFold
from proxy.engine.seam import SeamShows, continued, rest_events

Json = dict[str, Any]
TEXT = st.text(st.sampled_from(" \nab<"), max_size=8)
CALL = st.builds(
    lambda name, arguments: {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}},
    st.sampled_from(["add", "look_up"]),
    TEXT,
)


def message(content: str, reasoning: str = "", calls: list[Json] | None = None) -> Json:
    said: Json = {"role": "assistant", "content": content}
    said |= {"reasoning": reasoning} if reasoning else {}
    return said | ({"tool_calls": calls} if calls else {})


def shown(said: Json, events: list[Json]) -> Json:
    """What a reader has in the end."""
    fold = MessageFold()
    calls = [{"index": index, **call} for index, call in enumerate(said.get("tool_calls") or ())]
    fold.feed(said | {"tool_calls": calls})
    for event in events:
        fold.feed(event["choices"][0]["delta"])
    return fold.whole()


@given(TEXT, TEXT, st.lists(CALL, max_size=3), st.data())
def test_a_reader_of_any_beginning_ends_with_the_whole(
    reasoning: str, content: str, calls: list[Json], data: st.DataObject
) -> None:
    """Wherever the cut fell: in the reasoning, in the content, in a call's arguments."""
    whole = message(content, reasoning, calls)
    place = data.draw(st.integers(0, len(reasoning) + len(content)))
    said = message(content[: max(0, place - len(reasoning))], reasoning[:place])
    if place == len(reasoning) + len(content) and calls:
        function = calls[0]["function"]
        part = function["arguments"][: data.draw(st.integers(0, len(function["arguments"])))]
        said = said | {"tool_calls": [{**calls[0], "function": {**function, "arguments": part}}]}
    kept = continued(said, whole)

    assert kept == whole
    assert shown(said, rest_events(said, kept, (), "stop")) == whole


@pytest.mark.parametrize(
    ("said", "whole", "kept"),
    [("hi ", "hi", "hi "), ("\n\nhi", "hi there", "\n\nhi there"), ("\n", "hi", "\nhi"), ("  hi\n", "hi", "  hi\n")],
)
def test_blanks_that_a_stream_let_through_stay(said: str, whole: str, kept: str) -> None:
    """A parser that reads a text at once strips them before a call."""
    assert continued(message(said), message(whole))["content"] == kept


@pytest.mark.parametrize(
    ("said", "whole"),
    [
        (message("hello"), message("hallo")),
        (message("hello"), message("", "hello")),
        (message("", "a thought"), message("a thought")),
        (
            message("", "", [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{"}}]),
            message("x"),
        ),
        (
            message("", "", [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{1"}}]),
            message("", "", [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{2}"}}]),
        ),
    ],
)
def test_what_was_shown_and_is_no_beginning_is_told(said: Json, whole: Json) -> None:
    """Never mended in silence."""
    with pytest.raises(SeamShows):
        continued(said, whole)


def test_logprobs_that_no_text_carries_are_shown_all_the_same() -> None:
    """Those of the end token, say."""
    events = rest_events(message("all"), message("all"), ({"logprob": -1.0},), "stop")

    assert events[0]["choices"][0]["logprobs"] == {"content": [{"logprob": -1.0}]}
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
