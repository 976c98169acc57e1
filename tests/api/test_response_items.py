"""Items as messages: the echoes of real harnesses, what belongs to one reply, and what is refused."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.api.responses.ask import read_ask
from proxy.api.responses.output import Asked, Said, output_items
from proxy.api.responses.sealed import seal, unseal
from proxy.api.responses.tools import read_tools
from proxy.errors import BadAsk
from proxy.model import Ask, CallId, ParentCandidate, ParentSearch
from proxy.request.parent import resolve_parent
from proxy.settings import Settings
from tests import make
from tests.api.bodies import spoiled

HARNESSES = Path(__file__).parent / "harnesses"
IDENTITY = make.ask().identity
SETTINGS = Settings(engines=("http://127.0.0.1:1",))
TOOLS = [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]
CALLS = [
    {
        "id": "call_1",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"note":"créer","command":"ls -a"}'},
    },
    {"id": "call_2", "type": "function", "function": {"name": "bash", "arguments": '{"command": "pwd"}'}},
]
REPLY = {
    "role": "assistant",
    "content": "  Let me see.\n\n",
    "reasoning_content": "Look around first.\n ",
    "tool_calls": CALLS,
}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}


def read(items: Any, **fields: Any) -> Ask:
    return read_ask(IDENTITY, {"model": "m", "input": items, "tools": TOOLS, **fields}, SETTINGS)


@pytest.mark.parametrize("path", sorted(HARNESSES.glob("*.json")), ids=lambda path: path.stem)
def test_the_second_request_of_a_real_harness_finds_the_first(path: Path) -> None:
    """However it tells what was said, and wherever it puts what was thought."""
    told = json.loads(path.read_text())
    first, second = (read(told[name], **told["fields"]) for name in ("first", "second"))
    said = ParentCandidate(CallId("ca_1"), first.conversation.history[-1], REPLY, "", is_delivered=True)

    assert resolve_parent(first, ParentSearch()).reason == "first_turn"
    assert resolve_parent(second, ParentSearch((said,), knows_history=True)).outcome == "resolved"
    assert [message["role"] for message in second.messages][-3:] == ["assistant", "tool", "tool"]


@pytest.mark.parametrize("name", ["codex", "langchain", "openai_agents", "pi"])
def test_the_items_of_one_reply_are_one_message(name: str) -> None:
    """With the reasoning in it, also where only the sealed form came back."""
    told = json.loads((HARNESSES / f"{name}.json").read_text())
    (message,) = [one for one in read(told["second"], **told["fields"]).messages if one["role"] == "assistant"]

    assert (message["reasoning_content"], message["content"]) == ("Look around first.\n ", "  Let me see.\n\n")
    assert [call["id"] for call in message["tool_calls"]] == ["call_1", "call_2"]


@pytest.mark.parametrize(
    ("items", "parts"),
    [
        ([REASONING, MESSAGE, CALL], [{"reasoning_content", "content", "tool_calls"}]),
        ([REASONING, REASONING, MESSAGE], [{"reasoning_content"}, {"reasoning_content", "content"}]),
        ([MESSAGE, MESSAGE], [{"content"}, {"content"}]),
        ([CALL, MESSAGE], [{"tool_calls"}, {"content"}]),
        ([MESSAGE, REASONING, CALL], [{"content"}, {"reasoning_content", "tool_calls"}]),
        ([CALL, CALL], [{"tool_calls"}]),
        ([CALL, OUTPUT, CALL], [{"tool_calls"}, {"tool_calls"}]),
    ],
)
def test_what_cannot_follow_begins_the_next_message(items: list[Any], parts: list[set[str]]) -> None:
    """A cut stream leaves torsos; nothing of them is lost, and nothing is glued together."""
    told = [message for message in read(items).messages if message["role"] == "assistant"]

    assert [set(message) - {"role"} for message in told] == parts


@given(st.text(), st.text(), st.lists(st.tuples(st.sampled_from(["bash", "other"]), st.text()), max_size=3))
def test_a_reply_told_as_items_and_echoed_is_the_same_reply(
    thought: str, text: str, calls: list[tuple[str, str]]
) -> None:
    """Out and back, whatever it holds."""
    made = [
        {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    asked = Asked("rq_" + "0" * 32, 0.0, "m", {"store": False}, read_tools(TOOLS))
    items = output_items(Said(thought, text, tuple(made)), asked, "completed")
    messages = read([{"role": "user", "content": "hi"}, *items]).messages[1:]
    expected = {"reasoning_content": thought, "content": text, "tool_calls": made}

    assert list(messages) == [{"role": "assistant", **{k: v for k, v in expected.items() if v}}] * bool(items)


@given(st.text())
def test_a_seal_opens_to_what_was_sealed(text: str) -> None:
    """And is always the same."""
    assert unseal(seal(text)) == text
    assert seal(text) == seal(text)


@pytest.mark.parametrize("sealed", ["", "gAAAA", "rollpin-reasoning-1.!", "rollpin-reasoning-1./w==", None, 5])
def test_a_seal_of_somebody_else_is_not_read(sealed: Any) -> None:
    """The reasoning is then what is told beside it."""
    item = {**REASONING, "encrypted_content": sealed}

    assert read([{"role": "user", "content": "hi"}, item]).messages[-1]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": ["hi"]}, "input[0]"),
        ({"input": [{}]}, "input[0]"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0]"),
        ({"input": [{"type": ["message"]}]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{**CALL, "name": None}]}, "input[0].name"),
        ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id"),
        ({"input": [{**OUTPUT, "call_id": 5}]}, "input[0].call_id"),
        ({"input": [{**OUTPUT, "output": {}}]}, "input[0].output"),
        ({"input": [{**REASONING, "summary": "x"}]}, "input[0].summary"),
        ({"input": [{**REASONING, "content": [{"text": 5}]}]}, "input[0].content.text"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "p"}]}, "input[0].input"),
        ({"input": [{"type": "local_shell_call", "call_id": "c", "action": "ls"}]}, "input[0].action"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"instructions": 5}, "instructions"),
        ({"background": True}, "background"),
        ({"background": "x"}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"store": "x"}, "store"),
        ({"stream": "x"}, "stream"),
        ({"model": 5}, "model"),
        ({"include": "x"}, "include"),
        ({"include": [5]}, "include"),
        ({"metadata": "x"}, "metadata"),
        ({"truncation": "some"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": "x"}, "top_logprobs"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"text": "x"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format"),
        ({"tools": "x"}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0]"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].name"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"parallel_tool_calls": "x"}, "parallel_tool_calls"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_field_is_named(fields: dict[str, Any], param: str) -> None:
    """In the words of this API."""
    with pytest.raises(BadAsk) as error:
        read_ask(IDENTITY, {"input": "hi", **fields}, SETTINGS)

    assert error.value.param == param


def test_what_has_no_meaning_here_is_told_as_left_out() -> None:
    """Parts by their path; what the response tells back is not among them."""
    ask = read("hi", tools=[*TOOLS, {"type": "web_search"}], text={"verbosity": "low"}, user="u", metadata={"a": "b"})

    assert ask.left_out == ("tools.web_search", "text.verbosity")
    assert set(ask.chat) == {"model", "messages", "tools", "logprobs"}


def test_fields_are_those_of_chat_under_other_names() -> None:
    """So that one pin reads them."""
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    ask = read(
        "hi",
        text={"format": schema},
        reasoning={"effort": "low"},
        max_output_tokens=7,
        tool_choice={"type": "function", "name": "bash"},
    )

    assert ask.chat["response_format"]["json_schema"] == {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert (ask.chat["reasoning_effort"], ask.chat["max_completion_tokens"]) == ("low", 7)
    assert ask.chat["tool_choice"] == {"type": "function", "function": {"name": "bash"}}
    assert ask.chat["tools"] == [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]


def test_images_are_bound_by_the_same_rule_as_in_chat() -> None:
    """The engine fetches nothing."""
    fetched = [{"type": "input_image", "image_url": "http://169.254.169.254/latest"}]
    inline = [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}]

    assert read([{"role": "user", "content": inline}]).messages[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
    ]
    with pytest.raises(BadAsk, match="data: URLs"):
        read([{"role": "user", "content": fetched}])


EVERYTHING: dict[str, Any] = {
    "model": "m",
    "instructions": "be brief",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}],
        },
        {**REASONING, "encrypted_content": seal("hm")},
        MESSAGE,
        CALL,
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
        {"type": "local_shell_call", "id": "c3", "action": {"type": "exec", "command": ["ls"]}},
        OUTPUT,
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "local_shell_call_output", "id": "c3", "output": "x"},
        {"type": "item_reference", "id": "msg_" + "0" * 32},
    ],
    "tools": [*TOOLS, {"type": "namespace", "name": "n", "tools": TOOLS}, {"type": "custom", "name": "patch"}],
    "tool_choice": {"type": "function", "name": "bash"},
    "parallel_tool_calls": True,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 5,
    "top_logprobs": 1,
    "store": False,
    "stream": False,
    "truncation": "auto",
    "metadata": {"a": "b"},
    "previous_response_id": None,
    "temperature": 0.5,
    "chat_template_kwargs": {"enable_thinking": False},
}
FULL_INPUT = {**EVERYTHING, "input": EVERYTHING["input"][:-1]}


@settings(max_examples=500)
@given(spoiled(EVERYTHING, FULL_INPUT))
def test_whatever_a_body_holds_it_is_read_or_refused(body: dict[str, Any]) -> None:
    """Never a fault of ours."""
    with contextlib.suppress(BadAsk):
        read_ask(IDENTITY, body, SETTINGS)
