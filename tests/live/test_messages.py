"""Anthropic's own client against real engines: what it reads is what was sampled, and its echoes go on from there."""

import json
from typing import Any

import anthropic
import pytest

from tests.api.messages.speaking import ADD, hello, sdk_of
from tests.live.harness import AS_STREAM, Site
from tests.live.speaking import ONE_CALL, shaped
from tests.served import RolloutClient

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ADD_TOOL: Any = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


def said(client: RolloutClient, body: dict[str, Any], *, stream: bool) -> anthropic.types.Message:
    """One reply, checked against the SDK's own types."""
    with sdk_of(client) as sdk:
        if not stream:
            return sdk.messages.create(**body)
        with sdk.messages.stream(**body) as events:
            return events.get_final_message()


def test_a_streamed_message_is_the_whole_one(site: Site) -> None:
    """Same seed, same ids, same blocks; usage as the ids have it."""
    whole, streamed = site.rollout("message"), site.rollout("message")
    one = said(whole, hello("import os", max_tokens=40), stream=False)
    other = said(streamed, hello("import os", max_tokens=40), stream=True)

    assert whole.call()["completion_token_ids"] == streamed.call()["completion_token_ids"]
    told = [
        message.model_dump(exclude={"id": True, "content": {"__all__": {"parsed_output"}}}) for message in (one, other)
    ]
    assert told[0] == told[1]
    assert (one.stop_reason, one.usage.output_tokens) == ("max_tokens", 40)
    assert one.usage.input_tokens == len(whole.call()["prompt_token_ids"])


def test_the_prompt_is_counted_as_it_is_read(site: Site) -> None:
    """With the engine's own template, system text and tools among it."""
    client = site.rollout("count")
    body = hello("count me", max_tokens=5, system="be brief", tools=[ADD_TOOL])
    with sdk_of(client) as sdk:
        counted = sdk.messages.count_tokens(**{name: body[name] for name in ("model", "messages", "system", "tools")})

    assert said(client, body, stream=False).usage.input_tokens == counted.input_tokens


@AS_STREAM
def test_a_tool_conversation_goes_on_from_the_ids_that_were_sampled(site: Site, *, stream: bool) -> None:
    """The first turn is steered, which only chat can ask for; the next two are told in Messages."""
    client = site.rollout(f"tools-{stream}")
    opening = [{"role": "system", "content": "You add numbers."}, {"role": "user", "content": "Add 1 and 2."}]
    answer = client.post({"model": "policy", "messages": opening, **shaped(site.kind, ONE_CALL, thinks=True)})
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    turn = [
        {"type": "thinking", "thinking": message.get("reasoning_content") or "", "signature": "x"},
        {"type": "text", "text": message["content"] or ""},
        {"type": "tool_use", "id": call["id"], "name": "add", "input": json.loads(call["function"]["arguments"])},
    ]
    talk: list[Any] = [
        {"role": "user", "content": "Add 1 and 2."},
        {"role": "assistant", "content": turn},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "3"}]},
    ]
    body = hello(system="You add numbers.", tools=[ADD_TOOL], max_tokens=12)
    said(client, body | {"messages": talk}, stream=stream)
    first, second = client.calls()

    assert second["parent"]["call_id"] == first["call_id"], second["parent"]
    assert second["prefix"]["supplied"], second["prefix"]
    so_far = first["prompt_token_ids"] + first["completion_token_ids"]
    assert second["prompt_token_ids"][: len(so_far)] == so_far


def test_a_prompt_that_does_not_fit_is_told_as_claude_code_reads_it(site: Site) -> None:
    """Before or by the engine."""
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        said(site.rollout("long"), hello("word " * 8000), stream=False)


def test_an_image_that_nobody_would_see_is_refused(site: Site) -> None:
    """By the engine or by the proxy, never left out."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "text", "text": "what is it?"}, {"type": "image", "source": source}]
    with pytest.raises(anthropic.BadRequestError) as refused:
        said(site.rollout("image"), hello(messages=[{"role": "user", "content": content}]), stream=False)

    print(site.kind, refused.value.message)


@AS_STREAM
def test_a_real_model_uses_a_tool_and_reads_its_result(real_model: Site, *, stream: bool) -> None:
    """The tool is forced; whatever so small a model writes as arguments is an object to the client, and known again."""
    client = real_model.rollout(f"forced-{stream}")
    tool = ADD | {"input_schema": {"type": "object", "properties": {"a": {"enum": [1, 2, 3]}}, "required": ["a"]}}
    body = hello("add", tools=[tool], max_tokens=60, stop_sequences=["."])
    first = said(client, body | {"tool_choice": {"type": "tool", "name": "add"}}, stream=stream)
    (use,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "The sum is 7. Say it."}
    talk = [*body["messages"], first.to_param(), {"role": "user", "content": [result]}]
    second = said(client, body | {"messages": talk}, stream=stream)
    calls = client.calls()

    assert first.stop_reason in {"tool_use", "max_tokens"}, first
    assert calls[1]["parent"]["call_id"] == calls[0]["call_id"]
    assert second.stop_reason in {"end_turn", "max_tokens", "stop_sequence"}
    assert (second.stop_reason == "stop_sequence") is (second.stop_sequence == ".")
    print(use.input, second.stop_reason, calls[1]["prefix"])
