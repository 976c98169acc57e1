"""No seam: what was shown and what is still to be shown are together the whole message."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.fold import MessageFold
from proxy.engine.seam import SeamShows, continued, rest_events, showable

Json = dict[str, Any]
TEXT = st.text(st.sampled_from(" \nab<"), max_size=8)
PIECE = st.text(st.sampled_from("aé \ufffd"), max_size=4)
NAMES = st.sampled_from(["content", "reasoning", "reasoning_content", "refusal", "arguments"])
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


def event(name: str, text: str) -> Json:
    """One event of a stream that adds to one kind of text."""
    delta: Json = {"tool_calls": [{"index": 0, "function": {name: text}}]} if name == "arguments" else {name: text}
    return {"choices": [{"index": 0, "delta": delta}]}


def let_go(events: list[Json]) -> tuple[list[Json], list[Json]]:
    """What readers have been shown of a stream, and what has been kept back of it."""
    shown, kept = list[Json](), list[Json]()
    for one in events:
        let, kept = showable(kept, one)
        shown += let
    return shown, kept


@given(st.lists(st.tuples(NAMES, PIECE), max_size=12))
def test_every_event_is_shown_in_its_order_and_replacements_once_more_was_said(pieces: list[tuple[str, str]]) -> None:
    """However a text falls into events; at the end only what an abort may have brought about is kept back."""
    events = [event(name, text) for name, text in pieces]
    shown, kept = let_go(events)
    told = [(name, text) for name, text in pieces if text or name == "arguments"]
    name, text = told[-1] if told else ("", "")

    assert shown + kept == events
    assert bool(kept) == (text.endswith("\ufffd") or (name == "arguments" and text != ""))


@given(st.text(st.sampled_from("aé€😀\ufffd"), max_size=6), st.data())
def test_whatever_an_abort_cut_in_two_is_shown_as_a_beginning_of_the_whole(text: str, data: st.DataObject) -> None:
    """An engine's stream waits with bytes that are no character yet, and tells U+FFFD for them where it is aborted."""
    bytes_ = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(bytes_)))))
    told, events = "", list[Json]()
    for cut in cuts:
        now = bytes_[:cut].decode(errors="replace")
        if not now.endswith("\ufffd") or cut == cuts[-1]:
            events.append(event("content", now[len(told) :]))
            told = now
    shown, _ = let_go(events)
    said = "".join(one["choices"][0]["delta"]["content"] for one in shown)

    assert text.startswith(said)
    assert told.rstrip("\ufffd").startswith(said.rstrip("\ufffd"))


def test_words_on_the_way_to_arguments_are_shown_at_once() -> None:
    """A call opens by its name; nothing of that is kept back."""
    opening = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "add", "arguments": ""}}]}}]}

    assert showable([], opening) == ([opening], [])


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
