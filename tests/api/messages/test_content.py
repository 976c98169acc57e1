"""Blocks out of a growing reply: in order, none lost, and together what the whole reply would have been."""

from collections.abc import Iterable, Iterator
from typing import Any

import jiter
from hypothesis import given
from hypothesis import strategies as st

from proxy.api.messages.content import EVENTS_PER_SIGN_OF_LIFE, BlockWriter, message_blocks, signature_of
from proxy.echo import client_message
from proxy.engine.fold import MessageFold
from proxy.model import Plan
from tests import make

Json = dict[str, Any]
PLAN = make.plan(make.ask(api="messages"))
WORDS = st.text(alphabet="ab \n", max_size=4)


def text(words: str) -> Json:
    return {"content": words}


def thought(words: str) -> Json:
    return {"reasoning": words}


def piece(index: int, arguments: str = "", **more: Any) -> Json:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more}}]}


def call(index: int, name: str, arguments: str = "") -> Json:
    return piece(index, arguments, name=name)


def said_by(deltas: Iterable[Json]) -> Json:
    """The message that is recorded for these deltas."""
    fold = MessageFold()
    for delta in deltas:
        fold.feed(delta)
    return client_message(fold.whole(), PLAN, "reasoning_content")


def written(deltas: list[Json], plans: tuple[Plan, ...] = (PLAN,), **rules: Any) -> list[Json]:
    """The events of a reply of these deltas."""
    writer = BlockWriter(plans, "reasoning_content", shows_thinking=rules.get("shows_thinking", True))
    events = [event for delta in deltas for event in writer.take(delta)]
    return [*events, *writer.finish(said_by(deltas))]


def put_together(events: list[Json]) -> list[Json]:
    """What a client makes of the events; asserts that one block stands after the other."""
    blocks: list[Json] = []
    inputs: dict[int, str] = {}
    is_open = False
    for event in events:
        kind, index = event["type"], event["index"]
        assert is_open is (kind != "content_block_start"), event
        if kind == "content_block_start":
            assert index == len(blocks)
            blocks.append(dict(event["content_block"]))
            is_open = True
        elif kind == "content_block_stop":
            assert index == len(blocks) - 1
            is_open = False
        else:
            assert index == len(blocks) - 1
            _add(blocks[-1], event["delta"], inputs, index)
    assert not is_open
    return [
        {**block, "input": jiter.from_json(inputs[place].encode())} if block["type"] == "tool_use" else block
        for place, block in enumerate(blocks)
    ]


def _add(block: Json, delta: Json, inputs: dict[int, str], index: int) -> None:
    kind, block_type = delta["type"], block["type"]
    if kind == "input_json_delta":
        assert block_type == "tool_use"
        inputs[index] = inputs.get(index, "") + delta["partial_json"]
    elif kind == "signature_delta":
        assert block_type == "thinking"
        block["signature"] = delta["signature"]
    else:
        assert kind == f"{block_type}_delta"
        block[block_type] += delta[block_type]


def whole(deltas: list[Json]) -> list[Json]:
    return message_blocks(said_by(deltas), "reasoning_content", shows_thinking=True)


def test_one_block_stands_after_the_other() -> None:
    """In Anthropic's order: thoughts, signed, then words, then calls."""
    deltas = [thought("hm"), text("so"), call(0, "add", '{"a"'), piece(0, ": 1}"), call(1, "add", "{}")]
    kinds = [event.get("delta", event.get("content_block", {})).get("type") for event in written(deltas)]

    assert kinds == [
        *["thinking", "thinking_delta", "signature_delta", None],
        *["text", "text_delta", None],
        *["tool_use", "input_json_delta", None],
        *["tool_use", "input_json_delta", None],
    ]
    assert put_together(written(deltas)) == whole(deltas)


def test_a_thought_is_signed_by_its_text() -> None:
    """A rerun shows the same."""
    (block,) = put_together(written([thought("h"), thought("m")]))

    assert block == {"type": "thinking", "thinking": "hm", "signature": signature_of("hm")}
    assert signature_of("hm") != signature_of("hm ")


def test_thoughts_stay_out_of_sight_where_the_client_wants_none() -> None:
    """And nothing stands in their place."""
    assert put_together(written([thought("hm"), text("so")], shows_thinking=False)) == [{"type": "text", "text": "so"}]


def test_the_name_of_the_first_call_is_not_waited_for() -> None:
    """Its input is, since only at its end is it known whether it parses."""
    writer = BlockWriter((PLAN,), "reasoning_content", shows_thinking=True)
    events = [event for delta in (call(0, "add"), piece(0, '{"a')) for event in writer.take(delta)]

    assert [event["type"] for event in events] == ["content_block_start"]
    assert events[0]["content_block"]["name"] == "add"


def test_a_long_input_shows_signs_of_life() -> None:
    """Empty pieces, which change nothing."""
    deltas = [call(0, "add", '{"a": "'), *(piece(0, "x") for _ in range(3 * EVENTS_PER_SIGN_OF_LIFE)), piece(0, '"}')]
    events = written(deltas)

    assert [event["delta"]["partial_json"] for event in events if "delta" in event][:3] == ["", "", ""]
    assert put_together(events) == whole(deltas)


def test_a_name_in_pieces_is_whole_in_the_end() -> None:
    """No engine was seen to do that; the record says how the call is called."""
    deltas = [piece(0), call(0, "add", "{}"), call(1, "a"), call(1, "dd", "{}")]

    assert put_together(written(deltas)) == whole(deltas)


def test_a_recorded_reply_is_one_event() -> None:
    """With its ids as they were recorded."""
    message = said_by([thought("hm"), text("so"), call(0, "add", '{"a'), call(1, "add", "{}")])
    writer = BlockWriter((), "reasoning_content", shows_thinking=True)
    events = [*writer.take(message), *writer.finish(message)]

    assert put_together(events) == message_blocks(message, "reasoning_content", shows_thinking=True)


@st.composite
def natural(draw: st.DrawFn) -> list[Json]:
    """A reply as engines stream it: thoughts, words, calls, each in any number of pieces."""
    deltas = [thought(words) for words in draw(st.lists(WORDS, max_size=3))]
    deltas += [text(words) for words in draw(st.lists(WORDS, max_size=3))]
    for index in range(draw(st.integers(0, 3))):
        pieces = draw(st.lists(st.sampled_from(['{"a"', ": 1}", "", "{}", '"']), max_size=3))
        deltas += [call(index, "add"), *(piece(index, words) for words in pieces)]
    return deltas


@given(deltas=natural())
def test_pieces_make_the_whole(deltas: list[Json]) -> None:
    """Block for block, however the reply was cut."""
    assert put_together(written(deltas)) == whole(deltas)


@given(deltas=natural().flatmap(st.permutations))
def test_nothing_is_lost_whatever_comes_when(deltas: list[Json]) -> None:
    """Thoughts after words, words between the pieces of two calls: the meaning is that of the record."""
    blocks = put_together(written(_named_first(deltas)))
    expected = whole(_named_first(deltas))

    for kind in ("thinking", "text"):
        assert "".join(_told(blocks, kind)) == "".join(_told(expected, kind))
    assert [one for one in blocks if one["type"] == "tool_use"] == [
        one for one in expected if one["type"] == "tool_use"
    ]


def _named_first(deltas: list[Json]) -> list[Json]:
    """Calls begin with their name; what comes before belongs behind it."""
    order = {id(delta): place for place, delta in enumerate(deltas)}
    is_call = [delta for delta in deltas if "tool_calls" in delta]
    is_call.sort(key=lambda delta: ("name" not in delta["tool_calls"][0]["function"], order[id(delta)]))
    calls = iter(is_call)
    return [next(calls) if "tool_calls" in delta else delta for delta in deltas]


def _told(blocks: list[Json], kind: str) -> Iterator[str]:
    return (block[kind] for block in blocks if block["type"] == kind)
