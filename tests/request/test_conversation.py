"""The canonical conversation: the same context exactly when the model is asked the same thing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.model import Conversation
from proxy.request.conversation import LinkMemory, read_conversation
from tests import make

Json = dict[str, Any]

ADD: Json = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SUB: Json = {"type": "function", "function": {"name": "sub", "parameters": {"type": "object"}}}


def call(arguments: Any = '{"a": 1, "b": [2, 3]}', call_id: str = "call_1", name: str = "add") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str = "call_1", content: Any = "6") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def turn(*calls: Json, content: Any = None, **fields: Any) -> Json:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **fields}


def talk(*messages: Json, **body: Any) -> Conversation:
    return read_conversation(messages, body)


def part(text: str, **fields: Any) -> list[Json]:
    return [{"type": "text", "text": text, **fields}]


QUESTION = make.user("add them")
EQUAL: dict[str, tuple[list[Json], list[Json]]] = {
    "null and absent content": ([{"role": "assistant", "content": None}], [{"role": "assistant"}]),
    "null and empty content": ([{"role": "assistant", "content": None}], [make.assistant("")]),
    "no parts and empty content": ([{"role": "user", "content": []}], [make.user("")]),
    "one text part and its text": ([{"role": "user", "content": part("hi")}], [make.user("hi")]),
    "cache_control": ([{"role": "user", "content": part("hi", cache_control={"type": "x"})}], [make.user("hi")]),
    "cache_control on an image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}, "cache_control": {}}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,", "detail": None}}]}],
    ),
    "white space around assistant text": ([make.assistant(" 4\n")], [make.assistant("4")]),
    "argument spacing": ([turn(call('{"a":1,"b":[2,3]}'))], [turn(call('{ "a": 1,\n "b": [2, 3] }'))]),
    "argument key order": ([turn(call('{"a": 1, "b": 2}'))], [turn(call('{"b": 2, "a": 1}'))]),
    "1.0 and 1 in arguments": ([turn(call('{"a": 1.0}'))], [turn(call('{"a": 1}'))]),
    "arguments as text and as a value": ([turn(call('{"a": null}'))], [turn(call({"a": None}))]),
    "renamed tool-call ids": (
        [turn(call(call_id="x"), call(call_id="y")), result("x"), result("y", "7")],
        [turn(call(call_id="p"), call(call_id="q")), result("p"), result("q", "7")],
    ),
    "dropped reasoning": ([make.assistant("4") | {"reasoning_content": "2 and 2"}], [make.assistant("4")]),
    "reasoning under another name": (
        [make.assistant("4") | {"reasoning": "a"}],
        [make.assistant("4") | {"reasoning_content": "b"}],
    ),
    "nulls and unknown keys": (
        [make.assistant("4") | {"refusal": None, "annotations": [], "tool_calls": None, "name": None}],
        [make.assistant("4")],
    ),
}
DIFFERENT: dict[str, tuple[list[Json], list[Json]]] = {
    "text": ([make.user("a")], [make.user("b")]),
    "white space in a user's text": ([make.user("a ")], [make.user("a")]),
    "role": ([{"role": "user", "content": "a"}], [{"role": "system", "content": "a"}]),
    "order": ([make.user("a"), make.user("b")], [make.user("b"), make.user("a")]),
    "one message and two": ([make.user("ab")], [make.user("a"), make.user("b")]),
    "a message more": ([make.user("a")], [make.user("a"), make.user("")]),
    "two parts and their joined text": ([{"role": "user", "content": part("a") + part("b")}], [make.user("ab")]),
    "one call and two": ([turn(call())], [turn(call(), call(call_id="call_2"))]),
    "a call and none": ([turn(call())], [turn()]),
    "tool name": ([turn(call())], [turn(call(name="sub"))]),
    "argument value": ([turn(call('{"a": 1}'))], [turn(call('{"a": 2}'))]),
    "a null argument and none": ([turn(call('{"a": null}'))], [turn(call("{}"))]),
    "argument type": ([turn(call('{"a": 1}'))], [turn(call('{"a": "1"}'))]),
    "true and 1": ([turn(call('{"a": true}'))], [turn(call('{"a": 1}'))]),
    "broken arguments": ([turn(call('{"a": '))], [turn(call('{"a":'))]),
    "broken and whole arguments": ([turn(call('{"raw": 1}'))], [turn(call("{'raw': 1}"))]),
    "results swapped between calls": (
        [turn(call(call_id="x"), call(call_id="y")), result("x"), result("y", "7")],
        [turn(call(call_id="x"), call(call_id="y")), result("y"), result("x", "7")],
    ),
    "name of a speaker": ([make.user("a") | {"name": "ann"}], [make.user("a") | {"name": "bob"}]),
}
BODIES_APART: dict[str, tuple[Json, Json]] = {
    "tools": ({"tools": [ADD]}, {}),
    "another tool": ({"tools": [ADD]}, {"tools": [SUB]}),
    "tool order": ({"tools": [ADD, SUB]}, {"tools": [SUB, ADD]}),
    "template arguments": ({"chat_template_kwargs": {"enable_thinking": False}}, {}),
    "reasoning effort": ({"reasoning_effort": "high"}, {"reasoning_effort": "low"}),
    "tool_choice none": ({"tools": [ADD], "tool_choice": "none"}, {"tools": [ADD]}),
    "a continued last message": ({"continue_final_message": True}, {}),
    "documents": ({"documents": [{"text": "x"}]}, {}),
}
BODIES_ALIKE: dict[str, tuple[Json, Json]] = {
    "no tools": ({"tools": []}, {"tools": None}),
    "nulls in tools": ({"tools": [ADD | {"strict": None}]}, {"tools": [ADD]}),
    "tool_choice auto": ({"tools": [ADD], "tool_choice": "auto"}, {"tools": [ADD]}),
    "tool_choice required": ({"tools": [ADD], "tool_choice": "required"}, {"tools": [ADD]}),
    "empty template arguments": ({"chat_template_kwargs": {}}, {}),
    "sampling": ({"temperature": 0.1, "seed": 3, "max_tokens": 9, "stop": "x"}, {}),
    "streaming": ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": False}),
    "model, user and metadata": ({"model": "a", "user": "u", "metadata": {"t": 1}}, {"model": "b"}),
}


def test_a_context_never_changes() -> None:
    """Golden value, computed apart from the proxy: a change here changes every seed."""
    context = talk(make.user("What is 2+2?")).context

    assert context == "sha256:259297024e74cb9218ac20f0fd34d4511d9e8d7c4201e8adf086257959956d17"


@pytest.mark.parametrize(("one", "other"), list(EQUAL.values()), ids=list(EQUAL))
def test_spellings_of_one_conversation_agree(one: list[Json], other: list[Json]) -> None:
    """Clients re-serialise, drop and rename; the seed must not notice."""
    assert talk(QUESTION, *one).context == talk(QUESTION, *other).context


@pytest.mark.parametrize(("one", "other"), list(DIFFERENT.values()), ids=list(DIFFERENT))
def test_what_the_model_can_see_tells_conversations_apart(one: list[Json], other: list[Json]) -> None:
    """Two questions never share a draw."""
    assert talk(QUESTION, *one).context != talk(QUESTION, *other).context


@pytest.mark.parametrize(("one", "other"), list(BODIES_APART.values()), ids=list(BODIES_APART))
def test_tools_and_template_arguments_count(one: Json, other: Json) -> None:
    """They change the prompt, though no message changed."""
    assert talk(QUESTION, **one).context != talk(QUESTION, **other).context


@pytest.mark.parametrize(("one", "other"), list(BODIES_ALIKE.values()), ids=list(BODIES_ALIKE))
def test_what_does_not_change_the_prompt_does_not_count(one: Json, other: Json) -> None:
    """Sampling, wire and labels stay out of the context."""
    assert talk(QUESTION, **one).context == talk(QUESTION, **other).context


def test_the_chain_grows_message_by_message() -> None:
    """An earlier request's chain is the beginning of a later one's: that is how parents are found."""
    first = talk(QUESTION)
    later = talk(QUESTION, make.assistant("6"), make.user("and 7?"))

    assert later.history[: len(first.history)] == first.history
    assert len(later.history) == 4


def test_ids_of_tool_calls_are_counted_over_the_whole_conversation() -> None:
    """A result that answers an earlier turn's call is not one that answers the last."""
    turns = [turn(call(call_id="x")), result("x"), turn(call(call_id="y"))]

    assert talk(*turns, result("x")).context != talk(*turns, result("y")).context


def test_an_assistant_turn_is_noticed() -> None:
    """First turns are told from later ones."""
    assert not talk(QUESTION).has_assistant
    assert talk(QUESTION, make.assistant("6")).has_assistant


@pytest.mark.parametrize("odd", [{"a": 1}, [1], "text", 5, {"function": None}, {"function": {"name": 1}}])
def test_odd_tool_calls_are_hashed_and_never_crash(odd: Any) -> None:
    """What the model wrote is data."""
    assert talk(turn(odd)).context.startswith("sha256:")


@pytest.mark.parametrize("value", ["NaN", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000])
def test_arguments_that_json_cannot_hold_are_kept_as_text(value: str) -> None:
    """They differ as texts do, and nothing breaks."""
    assert talk(turn(call(value))).context != talk(turn(call(value + " "))).context


@given(st.text(), st.text())
def test_texts_are_never_confused(one: str, other: str) -> None:
    """Equal contexts mean equal texts, whatever stands in them."""
    assert (talk(make.user(one)).context == talk(make.user(other)).context) == (one == other)


@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_messages_never_run_into_each_other(one: list[str], other: list[str]) -> None:
    """The borders between messages are part of the chain."""
    same = talk(*map(make.user, one)).context == talk(*map(make.user, other)).context

    assert same == (one == other)


def test_a_history_read_before_is_read_the_same_again() -> None:
    """What is remembered goes by exact spelling: other raw ids in another order are another history."""

    def talk(one: str, two: str, answers: str) -> list[dict[str, Any]]:
        calls = [{"id": name, "function": {"name": "f", "arguments": "{}"}} for name in (one, two)]
        return [make.user(), {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": answers}]

    told = [talk("a", "b", "a"), talk("b", "a", "a"), talk("a", "b", "b"), talk("x", "y", "x")]
    cold = [read_conversation(messages, {}).history for messages in told]
    warm = [read_conversation(messages, {}).history for messages in told]

    assert warm == cold
    assert cold[0] == cold[3] != cold[1] == cold[2]


def test_memory_of_histories_is_bounded() -> None:
    """The longest unused are forgotten, and only cost time."""
    memory = LinkMemory(2)
    for name in (b"a", b"b", b"a", b"c"):
        memory.get(name) or memory.put(name, (name.decode(), ()))

    assert [memory.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
