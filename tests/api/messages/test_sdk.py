"""The official Anthropic client against the proxy, with its own types as the judge of every reply."""

import itertools
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.api.harness import Gate, until
from tests.api.messages.speaking import ADD, events, hello, post, sdk_of
from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.served import RolloutClient

SAID = Say("so be it", reasoning="hm")
CALLED = Say("let me see", reasoning="hm", calls=(ToolSay("add", '{"a": 1}'), ToolSay("add", '{"a": 2}')))
BROKEN = Say("let me see", calls=(ToolSay("add", '{"a": 1'), ToolSay("add", "{}")))
FINISHES = [
    (Say("so be it"), "end_turn"),
    (CALLED, "tool_use"),
    (Say("so be it", finish="length"), "max_tokens"),
    (Say("", calls=(ToolSay("add", '{"a": 1}'),)), "tool_use"),
]


@pytest.fixture
def sdk(rollout: RolloutClient) -> Iterator[anthropic.Anthropic]:
    with sdk_of(rollout) as made:
        yield made


def streamed(sdk: anthropic.Anthropic, body: dict[str, Any]) -> Any:
    """The message that the SDK's helper puts together."""
    with sdk.messages.stream(**body) as stream:
        return stream.get_final_message()


def spoken(sdk: anthropic.Anthropic, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """A reply as the client would echo it."""
    message = streamed(sdk, body) if stream else sdk.messages.create(**body)
    told: dict[str, Any] = message.model_dump(mode="json", exclude_none=True, exclude={"content": {"__all__": HELPERS}})
    return told


# What the SDK's streaming helper adds to blocks for its own use.
HELPERS = {"parsed_output", "__json_buf"}


def test_a_whole_reply(sdk: anthropic.Anthropic, rollout: RolloutClient, engine: FakeEngine) -> None:
    """Thoughts, words, usage and the name that was asked."""
    engine.script(SAID)
    answer = sdk.messages.with_raw_response.create(**hello())
    reply, call = answer.parse(), rollout.call()

    assert [block.type for block in reply.content] == ["thinking", "text"]
    assert (reply.content[0].thinking, reply.content[1].text) == ("hm", "so be it")  # type: ignore[union-attr]
    assert (reply.model, reply.role, reply.stop_reason, reply.stop_sequence) == (
        "claude",
        "assistant",
        "end_turn",
        None,
    )
    assert reply.id == f"msg_{call['request_id']}"
    assert reply.usage.input_tokens == len(call["prompt_token_ids"])
    assert reply.usage.output_tokens == len(call["completion_token_ids"])
    assert answer.headers["x-rollpin-call-id"] == call["call_id"]
    assert (call["api"], call["request"]) == ("messages", hello())


@pytest.mark.parametrize("said", [SAID, CALLED, BROKEN, Say("")], ids=["text", "calls", "broken", "empty"])
def test_the_stream_helper_makes_the_same_message(sdk: anthropic.Anthropic, engine: FakeEngine, said: Say) -> None:
    """Block for block, save what belongs to each draw: ids and usage."""
    engine.script(said, said)
    one, other = (spoken(sdk, hello(tools=[ADD]), stream=stream) for stream in (False, True))
    for message in (one, other):
        message.pop("id")
        for block in message["content"]:
            block.pop("id", None)

    assert one == other


@pytest.mark.parametrize(("said", "reason"), FINISHES, ids=["end_turn", "tool_use", "max_tokens", "call alone"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_why_a_reply_ended(
    sdk: anthropic.Anthropic, engine: FakeEngine, said: Say, reason: str, *, stream: bool
) -> None:
    """In Anthropic's words."""
    engine.script(said)

    assert spoken(sdk, hello(tools=[ADD]), stream=stream)["stop_reason"] == reason


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_stop_sequence_is_named(
    sdk: anthropic.Anthropic, rollout: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """Which of them it was, the engine tells; the record keeps it."""
    engine.script(Say("one two END three"))
    reply = spoken(sdk, hello(stop_sequences=["NEVER", "END"]), stream=stream)

    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")
    assert [block["text"] for block in reply["content"]] == ["one two "]
    assert rollout.call()["matched_stop"] == "END"
    assert rollout.call()["sampling"]["length"]["stop"] == ["NEVER", "END"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_conversation_with_tools(
    sdk: anthropic.Anthropic, rollout: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """The second turn echoes the first, its results in another order; its parent is found, and the engine reads all."""
    engine.script(CALLED, Say("it is 3"))
    messages: list[Any] = hello()["messages"]
    first = spoken(sdk, hello(messages=messages, tools=[ADD]), stream=stream)
    uses = [block for block in first["content"] if block["type"] == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": use["id"], "content": f"result {use['input']['a']}"}
        for use in reversed(uses)
    ]
    messages += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": results}]
    second = spoken(sdk, hello(messages=messages, tools=[ADD]), stream=stream)
    calls = rollout.calls()

    assert second["content"][-1]["text"] == "it is 3"
    assert calls[1]["parent"] == {"call_id": calls[0]["call_id"], "outcome": "resolved", "reason": "one_match"}
    assert [use["id"] for use in uses] == [call["id"] for call in calls[0]["message"]["tool_calls"]]
    assert all(use["id"].startswith("toolu_") for use in uses)
    assert [message["role"] for message in engine.requests[-1].body["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert [message["content"] for message in calls[1]["messages"][-2:]] == ["result 2", "result 1"]
    assert all(call["capture"]["complete"] for call in calls)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_call_whose_arguments_do_not_parse_goes_on(
    sdk: anthropic.Anthropic, rollout: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """The client gets an object all the same, and its echo is known."""
    engine.script(BROKEN, Say("sorry"))
    first = spoken(sdk, hello(tools=[ADD]), stream=stream)
    uses = [block for block in first["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "?", "is_error": True} for use in uses]
    echo = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": results}]
    spoken(sdk, hello(messages=hello()["messages"] + echo, tools=[ADD]), stream=stream)
    calls = rollout.calls()

    assert uses[0]["input"] == {"__unparsedToolInput": {"raw": '{"a": 1', "len": 7}}
    assert uses[1]["input"] == {}
    assert calls[1]["parent"]["call_id"] == calls[0]["call_id"]
    assert calls[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1'


def test_one_conversation_may_change_its_api(
    sdk: anthropic.Anthropic, rollout: RolloutClient, engine: FakeEngine
) -> None:
    """The meaning finds the parent, not the spelling."""
    engine.script(CALLED, Say("it is 3"))
    first = rollout.chat(tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}]).json()
    said = first["choices"][0]["message"]
    uses = [
        {"type": "tool_use", "id": call["id"], "name": "add", "input": {"a": place + 1}}
        for place, call in enumerate(said["tool_calls"])
    ]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "ok"} for use in uses]
    echo = [
        {"role": "assistant", "content": [{"type": "text", "text": said["content"]}, *uses]},
        {"role": "user", "content": results},
    ]
    sdk.messages.create(**hello(messages=hello()["messages"] + echo, tools=[{"name": "add", "input_schema": {}}]))
    calls = rollout.calls()

    assert [call["api"] for call in calls] == ["chat", "messages"]
    assert calls[1]["parent"]["call_id"] == calls[0]["call_id"]


def test_events_come_in_their_order_and_each_once(rollout: RolloutClient, engine: FakeEngine) -> None:
    """No first delta lost, no second start, no name dropped: what others have broken."""
    engine.script(CALLED)
    seen = events(rollout, hello(tools=[ADD]))
    names = [name for name, _ in seen]
    starts = [payload["content_block"] for _, payload in seen if payload["type"] == "content_block_start"]
    texts = [payload["delta"].get("text", "") for _, payload in seen if payload["type"] == "content_block_delta"]

    assert all(name == payload["type"] for name, payload in seen)
    assert (names[0], names[1]) == ("message_start", "content_block_start")
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert (names.count("message_start"), names.count("message_stop"), names.count("message_delta")) == (1, 1, 1)
    assert [block["type"] for block in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["name"] for block in starts[2:]] == ["add", "add"]
    assert "".join(texts) == "let me see"


def test_nothing_shows_the_end_before_the_record_is_durable(rollout: RolloutClient, engine: FakeEngine) -> None:
    """H1: a harness that exits on the stop reason leaves no turn unrecorded."""
    gate = Gate(rollout.proxy)
    engine.script(CALLED)
    with rollout.http.stream("POST", "/messages", json={**hello(tools=[ADD]), "stream": True}) as response:
        lines = response.iter_lines()
        early = list(itertools.takewhile(lambda line: "tool_use" not in line, lines))
        until(lambda: gate.waiting)
        gate.open()
        late = list(lines)

    assert early
    assert not any("message_delta" in line or "partial_json" in line for line in early)
    assert [line for line in late if line.startswith("event: message")] == [
        "event: message_delta",
        "event: message_stop",
    ]


def test_thoughts_are_hidden_from_who_wants_none(sdk: anthropic.Anthropic, engine: FakeEngine) -> None:
    """`thinking: disabled`; the record has them."""
    engine.script(SAID, SAID)
    body = hello(thinking={"type": "disabled"})

    for stream in (False, True):
        assert [block["type"] for block in spoken(sdk, body, stream=stream)["content"]] == ["text"]


def test_a_stream_that_breaks_raises_in_mid_stream(sdk: anthropic.Anthropic, engine: FakeEngine) -> None:
    """Never a quiet end: an agent must not take half a reply for one."""
    engine.script(Fault.cut(5, SAID))
    with pytest.raises(anthropic.APIStatusError) as raised:
        streamed(sdk, hello())

    body: Any = raised.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "api_error")
    assert "broke off" in body["error"]["message"]


def test_the_prompt_is_counted_by_the_engines_template(
    sdk: anthropic.Anthropic, rollout: RolloutClient, engine: FakeEngine
) -> None:
    """What a call would read; nothing of it is in the rollout."""
    engine.script(Say("so be it"))
    body = hello(system="be brief", tools=[ADD])
    counted = sdk.messages.count_tokens(**{name: body[name] for name in ("model", "messages", "system", "tools")})

    assert rollout.proxy.calls(rollout.rollout_id) == []
    assert post(rollout, body).json()["usage"]["input_tokens"] == counted.input_tokens


def test_models_are_listed_in_anthropics_form(sdk: anthropic.Anthropic) -> None:
    """For the clients that say who they are."""
    assert [model.id for model in sdk.models.list()] == ["tiny"]
    assert sdk.models.retrieve("claude-9").id == "claude-9"


def test_the_plain_base_takes_the_key_as_x_api_key(rollout: RolloutClient, engine: FakeEngine) -> None:
    """As Anthropic's clients send it."""
    engine.script(SAID)
    with sdk_of(rollout, base_url=rollout.proxy.url) as sdk:
        sdk.messages.create(**hello())

    assert rollout.call()["api"] == "messages"


def test_a_base_without_a_version_is_served(rollout: RolloutClient, engine: FakeEngine) -> None:
    """Some clients append the path alone."""
    engine.script(SAID)
    url = f"{rollout.created['anthropic_base_url']}/messages"

    assert rollout.http.post(url, json=hello()).status_code == 200
    assert rollout.http.post(f"{url}/count_tokens", json=hello()).json()["input_tokens"] > 0
