"""A Messages body in chat form: the same meaning has the same hash, and nothing is passed on by chance."""

from pathlib import Path
from typing import Any

import pytest

from proxy.api import chat
from proxy.api.messages import MESSAGES
from proxy.errors import BadAsk
from proxy.model import Ask, Identity
from proxy.request.sampling import PinRules, Room, pin_sampling
from tests import make
from tests.api.messages.speaking import ADD, ADD_IN_CHAT, hello
from tests.served import settings_for

WHO = Identity(make.rollout(), {}, None, 0)
SETTINGS = settings_for(Path(), "http://127.0.0.1:1")
RULES = PinRules(
    strict=False, constrained="flag", refuse_unknown=False, shaping_understood=frozenset({"response_format"})
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def read(**fields: Any) -> Ask:
    return MESSAGES.read_ask(WHO, hello(**fields), SETTINGS)


def ignored(ask: Ask, **rules: Any) -> tuple[str, ...]:
    settled = PinRules(**{name: getattr(RULES, name) for name in RULES.__slots__} | rules)
    return pin_sampling(ask.chat, make.Profile("train"), settled, Room(), ask.left_out).ignored


def test_one_conversation_has_one_hash_in_both_apis() -> None:
    """So that seeds, repeats and parents do not depend on what a harness speaks."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"b":1.0, "a":"é"}'}}
    in_chat = {
        "tools": [ADD_IN_CHAT],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "add"},
            {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "2"},
            {"role": "user", "content": "and?"},
        ],
    }
    said = [{"type": "text", "text": "so "}, {"type": "tool_use", "id": "toolu_x", "name": "add"}]
    said[1]["input"] = {"a": "é", "b": 1}  # type: ignore[assignment]
    outcome = [{"type": "tool_result", "tool_use_id": "toolu_x", "content": [{"type": "text", "text": "2"}]}]
    in_messages = hello(
        tools=[ADD | {"cache_control": {"type": "ephemeral"}}],
        system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "add"}]},
            {"role": "assistant", "content": said},
            {"role": "user", "content": [*outcome, {"type": "text", "text": "and?"}]},
        ],
    )

    spoken = [chat.read_ask(WHO, in_chat, SETTINGS), MESSAGES.read_ask(WHO, in_messages, SETTINGS)]
    assert spoken[0].conversation == spoken[1].conversation


def test_the_billing_header_changes_nothing() -> None:
    """Claude Code's first system block is another on each request."""
    first, second = (
        read(
            system=[{"type": "text", "text": f"x-anthropic-billing-header: cch={build}"}, {"type": "text", "text": "x"}]
        )
        for build in ("a1f", "07c")
    )

    assert first.conversation == second.conversation
    assert [line.original[-7:] for line in (*first.volatile, *second.volatile)] == ["cch=a1f", "cch=07c"]


def test_fields_have_their_names_in_chat() -> None:
    """And the body stays what it was."""
    ask = read(stop_sequences=["END"], temperature=0.5, top_k=5, stream=True, system="s")

    assert ask.api == "messages"
    assert ask.body["stop_sequences"] == ["END"]
    assert {name: ask.chat[name] for name in ("stop", "temperature", "top_k", "max_tokens")} == {
        "stop": ["END"],
        "temperature": 0.5,
        "top_k": 5,
        "max_tokens": 300,
    }
    assert (ask.stream, ask.choices, ask.requested_model, ask.left_out) == (True, 1, "claude", ())


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (None, {}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "add"}, {"tool_choice": {"type": "function", "function": {"name": "add"}}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
        ({"type": "auto", "disable_parallel_tool_use": False}, {"tool_choice": "auto"}),
    ],
)
def test_a_tool_choice_is_chats(choice: Any, told: Any) -> None:
    """Forcing ones are constraints, and recorded as such by the pin."""
    said = read(tools=[ADD], tool_choice=choice).chat

    assert {name: said[name] for name in ("tool_choice", "parallel_tool_calls") if name in said} == told


def test_tools_that_only_anthropics_models_know_are_left_out_with_a_note() -> None:
    """No engine could offer them."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    ask = read(tools=[search, ADD | {"type": "custom", "defer_loading": True}])

    assert ask.chat["tools"] == [ADD_IN_CHAT]
    assert ignored(ask) == ("tools.defer_loading", "tools.web_search_20250305")
    assert read(tools=[search]).has_tools is False


def test_a_strict_tool_is_strict() -> None:
    """It makes engines constrain the output."""
    assert read(tools=[ADD | {"strict": True}]).chat["tools"][0]["function"]["strict"] is True


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_a_schema_for_the_reply_is_a_response_format(where: str) -> None:
    """Under its present name and its former one."""
    wanted = {"type": "json_schema", "schema": SCHEMA}
    ask = read(**{where: {"format": wanted, "effort": "high"} if where == "output_config" else wanted})

    assert ask.chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": SCHEMA},
    }
    assert ignored(ask) == (("output_config.effort",) if where == "output_config" else ())


def test_what_engines_have_no_equal_for_is_recorded_as_ignored() -> None:
    """Also fields of chat's that Messages does not have: they are no way around this API."""
    strange = {"thinking": {"type": "adaptive"}, "metadata": {"user_id": "u"}, "context_management": {}, "betas": ["x"]}
    foreign = {"n": 3, "logprobs": True, "response_format": {"type": "json_object"}, "chat_template_kwargs": {"x": 1}}
    ask = read(**strange, **foreign)

    assert ignored(ask) == tuple(sorted([*strange, *foreign]))
    assert set(ask.chat) == {"model", "max_tokens", "messages"}
    assert ask.choices == 1


def test_where_unknown_fields_are_refused_notes_are_not() -> None:
    """A cache mark is no field of the body; a thinking budget is."""
    marked = read(system=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}])

    assert ignored(marked, refuse_unknown=True) == ("system.cache_control",)
    with pytest.raises(BadAsk, match="thinking"):
        ignored(read(thinking={"type": "adaptive"}), refuse_unknown=True)


def test_a_begun_reply_is_continued() -> None:
    """A prefill, where the last word is the model's."""
    begun = [*hello()["messages"], {"role": "assistant", "content": "The answer is"}]
    called = {"type": "tool_use", "id": "t", "name": "add", "input": {}}

    assert read(messages=begun).chat["continue_final_message"] is True
    assert "continue_final_message" not in read().chat
    assert "continue_final_message" not in read(messages=[*begun[:1], {"role": "assistant", "content": [called]}]).chat


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_tokens", None, "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", "5", "max_tokens"),
        ("model", 5, "model"),
        ("messages", None, "messages"),
        ("messages", [], "messages"),
        ("messages", "hi", "messages"),
        ("system", 5, "system"),
        ("system", ["x"], "system[0]"),
        ("system", [{"type": "image"}], "system[0]"),
        ("stream", "yes", "stream"),
        ("stop_sequences", "END", "stop_sequences"),
        ("stop_sequences", [""], "stop_sequences"),
        ("stop_sequences", [5], "stop_sequences"),
        ("seed", "7", "seed"),
        ("tools", {}, "tools"),
        ("tools", ["x"], "tools"),
        ("tools", [{"input_schema": {}}], "tools[0].name"),
        ("tools", [ADD, {"name": "x"}], "tools[1].input_schema"),
        ("tools", [ADD | {"description": 5}], "tools[0].description"),
        ("tool_choice", "auto", "tool_choice"),
        ("tool_choice", {"type": "some"}, "tool_choice.type"),
        ("tool_choice", {"type": ["any"]}, "tool_choice.type"),
        ("tool_choice", {"type": "any"}, "tool_choice"),
        ("tool_choice", {"type": "tool", "name": "add"}, "tool_choice.name"),
        ("tool_choice", {"type": "tool", "name": ["add"]}, "tool_choice.name"),
        ("tool_choice", {"type": "auto", "disable_parallel_tool_use": 1}, "tool_choice.disable_parallel_tool_use"),
        ("output_config", "x", "output_config"),
        ("output_config", {"format": "json"}, "output_config.format"),
        ("output_config", {"format": {"type": "json_schema"}}, "output_config.format"),
    ],
)
def test_a_field_of_the_wrong_form_is_named(field: str, value: Any, param: str) -> None:
    """Before anything else is done with the request."""
    with pytest.raises(BadAsk) as refused:
        read(**{field: value})

    assert refused.value.param == param
