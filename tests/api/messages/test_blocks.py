"""Conversations of blocks as chat messages: where each block goes, and what is refused by its place."""

from typing import Any

import pytest

from proxy.api.messages.blocks import Talk
from proxy.api.messages.inputs import UNPARSED
from proxy.errors import BadAsk
from tests import make

HELLO = make.user("hello")
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
IMAGE = {"type": "image", "source": PNG}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result(number: int, content: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": content, **more}


def use(number: int, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "add", "input": arguments}


def told(number: int, content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"toolu_{number}", "content": content}


def read(*messages: Any, system: Any = None, **rules: Any) -> list[Any]:
    return Talk((), **rules).read(system, list(messages))


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


@pytest.mark.parametrize("system", [None, "", []])
def test_without_a_system_text_there_is_no_system_message(system: Any) -> None:
    """Nothing is put in its place."""
    assert read(HELLO, system=system) == [HELLO]


@pytest.mark.parametrize("system", ["be brief", [text("be brief")]])
def test_the_system_text_comes_first(system: Any) -> None:
    """As text, or as one block."""
    assert read(HELLO, system=system) == [{"role": "system", "content": "be brief"}, HELLO]


def test_several_blocks_stay_several_parts() -> None:
    """As a chat client would send them: what stands between them is the engine's to say."""
    assert read(user(text("a"), text("b")), system=[text("x"), text("y")]) == [
        {"role": "system", "content": [text("x"), text("y")]},
        {"role": "user", "content": [text("a"), text("b")]},
    ]


def test_a_system_message_among_the_others_keeps_its_place() -> None:
    """Claude Code sends them."""
    later = {"role": "system", "content": [text("now")]}

    assert read(HELLO, later) == [HELLO, {"role": "system", "content": "now"}]
    assert read(HELLO, later, later_system="as_user") == [HELLO, make.user("now")]
    assert read(later, HELLO, later_system="as_user") == [{"role": "system", "content": "now"}, HELLO]


def test_results_come_before_what_else_the_user_says_in_their_own_order() -> None:
    """Tools end in any order, and words may stand anywhere among their results."""
    assert read(user(text("a"), result(2), text("b"), result(1))) == [
        told(2),
        told(1),
        {"role": "user", "content": [text("a"), text("b")]},
    ]


def test_results_alone_make_no_user_message() -> None:
    """The usual case."""
    assert read(user(result(1))) == [told(1)]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, ""),
        ([], ""),
        ("", ""),
        ([text("a")], "a"),
        ([text("a"), text("b")], [text("a"), text("b")]),
        ([text("a"), IMAGE], [text("a"), IMAGE_PART]),
    ],
)
def test_a_result_may_be_text_or_blocks(content: Any, shown: Any) -> None:
    """An image in it is passed on, never dropped."""
    assert read(user(result(1, content))) == [told(1, shown)]


def test_a_failed_result_is_noted() -> None:
    """Chat has no word for it; what the tool said tells the model."""
    talk = Talk(())
    talk.read(None, [user(result(1, is_error=True), result(2, is_error=False))])

    assert talk.notes == {"messages.is_error"}


def test_a_turn_is_put_together_out_of_its_blocks() -> None:
    """Thoughts, words and calls, whatever their order."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    (message,) = read(assistant(thought, text("a"), use(1, x=1), text("b"), use(2)))

    assert message == {
        "role": "assistant",
        "content": "ab",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
            {"id": "toolu_2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
        ],
    }


@pytest.mark.parametrize("blocks", [[], [{"type": "redacted_thinking", "data": "x"}], [text("")]])
def test_a_turn_may_be_empty(blocks: list[Any]) -> None:
    """Replies can be; clients echo them."""
    assert read(assistant(*blocks)) == [{"role": "assistant", "content": ""}]


def test_arguments_that_did_not_parse_are_what_they_were() -> None:
    """Out of the wrapper that Claude Code puts around them."""
    (message,) = read(assistant(use(1, **{UNPARSED: {"raw": '{"a', "len": 3}})))

    assert message["tool_calls"][0]["function"]["arguments"] == '{"a'


def test_what_is_said_of_a_block_is_noted_and_left_out() -> None:
    """Cache marks move from message to message."""
    mark = {"cache_control": {"type": "ephemeral"}}
    talk = Talk(())
    chat = talk.read([text("x") | mark], [user(text("a") | mark | {"citations": None})])

    assert chat == [{"role": "system", "content": "x"}, make.user("a")]
    assert talk.notes == {"system.cache_control", "messages.cache_control"}


def test_an_image_is_a_data_url() -> None:
    """As chat has it."""
    assert read(user(text("what?"), IMAGE)) == [{"role": "user", "content": [text("what?"), IMAGE_PART]}]


def test_an_image_from_an_allowed_host_passes() -> None:
    """And from no other."""
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}

    assert Talk(("example.org",)).read(None, [user(image)])[0]["content"][0]["image_url"]["url"].endswith("/a.png")
    with pytest.raises(BadAsk) as refused:
        read(HELLO, user(text("a"), image))
    assert (refused.value.code, refused.value.param) == ("media_url_refused", "messages[1].content[1].source")


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (user({"type": "document", "source": {}}), "content[0]"),
        (user({"type": "search_result"}), "content[0]"),
        (user({"type": "thinking", "thinking": "x"}), "content[0]"),
        (user(use(1)), "content[0]"),
        (user(result(1, [{"type": "document"}])), "content[0].content[0]"),
        (user(result(1, [{"type": "tool_reference"}])), "content[0].content[0]"),
        (assistant(result(1)), "content[0]"),
        (assistant(IMAGE), "content[0]"),
        (assistant({"type": "server_tool_use"}), "content[0]"),
        ({"role": "system", "content": [IMAGE]}, "content[0]"),
        (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), "content[0].source"),
    ],
)
def test_what_no_engine_can_be_given_is_refused(message: Any, place: str) -> None:
    """Never dropped: the model would answer another question."""
    with pytest.raises(BadAsk) as refused:
        read(message)

    assert (refused.value.code, refused.value.param) == ("unsupported_content", f"messages[0].{place}")


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("hi", ""),
        (None, ""),
        ({"content": "hi"}, ".role"),
        ({"role": "robot", "content": "hi"}, ".role"),
        ({"role": ["user"], "content": "hi"}, ".role"),
        ({"role": "tool", "content": "hi"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": 5}, ".content"),
        (user("hi"), ".content[0]"),
        (user({"text": "hi"}), ".content[0]"),
        (user({"type": ["text"]}), ".content[0]"),
        (user({"type": "text"}), ".content[0].text"),
        (user({"type": "text", "text": 5}), ".content[0].text"),
        (user(result(1) | {"tool_use_id": 5}), ".content[0].tool_use_id"),
        (user(result(1, 5)), ".content[0].content"),
        (user({"type": "image"}), ".content[0].source"),
        (user({"type": "image", "source": PNG | {"media_type": "text/html"}}), ".content[0].source.media_type"),
        (user({"type": "image", "source": PNG | {"data": "?"}}), ".content[0].source.data"),
        (user({"type": "image", "source": PNG | {"data": None}}), ".content[0].source.data"),
        (user({"type": "image", "source": PNG | {"data": "é"}}), ".content[0].source.data"),
        (assistant(use(1) | {"id": None}), ".content[0].id"),
        (assistant(use(1) | {"name": 5}), ".content[0].name"),
        (assistant(use(1) | {"input": "{}"}), ".content[0].input"),
        (assistant({"type": "thinking"}), ".content[0].thinking"),
    ],
)
def test_a_wrong_form_is_refused_by_its_place(message: Any, place: str) -> None:
    """In the words of the client's own body."""
    with pytest.raises(BadAsk) as refused:
        read(HELLO, message)

    assert refused.value.param == f"messages[1]{place}"
