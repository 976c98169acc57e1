"""The engines' own Messages and Responses, asked straight: the simulated engine reads and tells them as these do.

Its translation of a body is held against the engine's: chat, asked with what the simulation makes of the body, counts
as many prompt tokens as the engine's own route, and draws the same. Where SGLang reads these otherwise than its chat,
that is spelled out here, and the simulation does without it.
"""

from itertools import groupby
from typing import Any

import httpx
import pytest

from proxy.sim import Say, SimEngine
from proxy.sim.apis import MESSAGES, Api
from proxy.sim.sglang import SGLang
from proxy.sim.vllm import VLLM
from tests.live.harness import PATIENCE_S, Site

Json = dict[str, Any]

GREEDY: Json = {"model": "tiny", "temperature": 0}
MESSAGE_TURNS: list[Json] = [
    {"role": "user", "content": "import os"},
    {"role": "assistant", "content": [{"type": "text", "text": "let me see"}]},
    {"role": "user", "content": [{"type": "text", "text": "well?"}]},
]
MESSAGE_TOOL_TURNS: list[Json] = [
    {"role": "user", "content": "Add 1 and 2."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "let me see"},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
            {"type": "tool_use", "id": "t2", "name": "add", "input": {"a": 2}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "1"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "2"}]},
            {"type": "text", "text": "well?"},
        ],
    },
]
MESSAGE_TOOL: Json = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
TOOL: Json = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}
ITEM_TURNS: list[Json] = [
    {"role": "user", "content": [{"type": "input_text", "text": "Add 1 and 2."}]},
    {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "id": "f1", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
    {"type": "function_call", "id": "f2", "call_id": "c2", "name": "add", "arguments": '{"a": 2}'},
    {"type": "function_call_output", "call_id": "c1", "output": "1"},
    {"type": "function_call_output", "call_id": "c2", "output": "2"},
]
MESSAGE_BODIES: dict[str, Json] = {
    "plain": {"messages": MESSAGE_TURNS[:1]},
    "turns": {"messages": MESSAGE_TURNS, "system": [{"type": "text", "text": "be brief"}]},
    "tools": {"messages": MESSAGE_TOOL_TURNS, "system": "be brief", "tools": [MESSAGE_TOOL]},
    "no thinking": {"messages": MESSAGE_TURNS[:1], "thinking": {"type": "disabled"}},
}
RESPONSE_BODIES: dict[str, Json] = {
    "plain": {"input": "import os"},
    "instructed": {"input": "import os", "instructions": "be brief"},
    "tools": {"input": ITEM_TURNS, "tools": [TOOL]},
}


def ask(url: str, path: str, body: Json) -> Json:
    answer = httpx.post(f"{url}/v1/{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def as_chat_is_asked(site: Site, api: Api, body: Json) -> Json:
    """The engine's chat, asked with what the simulation makes of the body."""
    chat = api.to_chat(body)
    return ask(site.engine.url, "chat/completions", as_sglang_reads(chat, api) if site.kind == "sglang" else chat)


def as_sglang_reads(chat: Json, api: Api) -> Json:
    """SGLang tells the template that a tool is not strict, and prints earlier thoughts of messages into their text."""
    tools = [{**tool, "function": {**tool["function"], "strict": False}} for tool in chat.get("tools") or ()]
    messages = [spliced(message) if api is MESSAGES else message for message in chat["messages"]]
    return {**chat, "messages": messages, **({"tools": tools} if tools else {})}


def spliced(message: Json) -> Json:
    """A reply whose thought is a text part before its words."""
    if "reasoning_content" not in message:
        return message
    texts = [f"<think>{message['reasoning_content']}\n</think>", message["content"]]
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {**rest, "content": [{"type": "text", "text": text} for text in texts]}


def told_in(reply: Json) -> str:
    """All that a reply says, in whichever API."""
    match reply:
        case {"content": blocks}:
            return "".join(block.get("thinking") or block.get("text") or "" for block in blocks)
        case {"output": items}:
            return "".join(part["text"] for item in items for part in item["content"])
    message = reply["choices"][0]["message"]
    return (message.get("reasoning") or message.get("reasoning_content") or "") + (message["content"] or "")


def outline(url: str, path: str, body: Json) -> list[str]:
    """The names of a stream's events, repeated ones once; a ping says nothing."""
    with httpx.stream("POST", f"{url}/v1/{path}", json={**body, "stream": True}, timeout=PATIENCE_S) as answer:
        lines = [line.removeprefix("event: ") for line in answer.iter_lines() if line.startswith("event: ")]
    return [name for name, _ in groupby(name for name in lines if name != "ping")]


@pytest.mark.parametrize("fields", MESSAGE_BODIES.values(), ids=MESSAGE_BODIES)
def test_a_messages_body_is_read_as_the_engine_reads_it(site: Site, fields: Json) -> None:
    """The same prompt to the token, and so the same words."""
    body = {**GREEDY, "max_tokens": 12, **fields}
    own, chat = ask(site.engine.url, "messages", body), as_chat_is_asked(site, MESSAGES, body)

    assert own["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert told_in(own) == told_in(chat)


@pytest.mark.parametrize("fields", RESPONSE_BODIES.values(), ids=RESPONSE_BODIES)
def test_a_responses_body_is_read_as_the_engine_reads_it(site: Site, fields: Json) -> None:
    """The same; SGLang's Responses keep two tokens of the length back."""
    dialect, kept_back = (VLLM(), 0) if site.kind == "vllm" else (SGLang(), 2)
    body = {**GREEDY, "max_output_tokens": 12, **fields}
    own = ask(site.engine.url, "responses", body | {"max_output_tokens": 12 + kept_back})
    chat = as_chat_is_asked(site, dialect.responses, body)

    assert own["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert told_in(own) == told_in(chat)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("messages", {**GREEDY, "max_tokens": 12, "messages": MESSAGE_TURNS[:1]}),
        ("responses", {**GREEDY, "max_output_tokens": 12, "input": "import os"}),
    ],
    ids=["messages", "responses"],
)
def test_a_reply_has_the_form_of_the_engines_own(site: Site, path: str, body: Json) -> None:
    """The simulation tells no field that the engine does not, and the events of its stream come in the same order.

    Both replies are cut by their length, which vLLM's last event alone does not call `response.incomplete`.
    """
    with SimEngine(site.kind) as sim:  # type: ignore[arg-type]
        sim.script(*[Say("", reasoning="hm", finish="length")] * 2)
        real, simulated = ask(site.engine.url, path, body), ask(sim.url, path, body)
        streams = [outline(url, path, body) for url in (site.engine.url, sim.url)]

    assert {name for name, value in simulated.items() if value is not None} <= set(real)
    assert set(simulated["usage"]) <= set(real["usage"])
    if site.kind == "vllm" and path == "responses":
        assert (streams[0].pop(), streams[1].pop()) == ("response.completed", "response.incomplete")
    assert streams[0] == streams[1]
