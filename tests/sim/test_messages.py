"""The simulated engine's Messages API: Anthropic's own client is the judge, chat on the same engine the measure."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.fakes import FakeEngine, Fault, Say, ToolSay

Json = dict[str, Any]

AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ADD: Any = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
ADD_IN_CHAT = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}
CALLED = Say("let me see", reasoning="hm", calls=(ToolSay("add", '{"a": 1}'), ToolSay("add", '{"a": 2}')))
EARLIER = [
    {"role": "user", "content": [{"type": "text", "text": "one and one"}, {"type": "text", "text": "please"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "let me see"},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "I did."},
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "2"}]},
            {"type": "text", "text": "well?"},
        ],
    },
]
EARLIER_IN_CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": EARLIER[0]["content"]},
    {
        "role": "assistant",
        "content": "let me see",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    },
    {"role": "user", "content": "I did."},
    {"role": "tool", "tool_call_id": "t1", "content": "2"},
    {"role": "user", "content": "well?"},
]


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    """One of each kind."""
    with FakeEngine(request.param) as fake:
        yield fake


@pytest.fixture
def sdk(engine: FakeEngine) -> Iterator[anthropic.Anthropic]:
    """The official client, which checks every reply against its own types and never retries."""
    with anthropic.Anthropic(
        base_url=engine.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as made:
        yield made


def hello(**fields: Any) -> Json:
    return {"model": "tiny", "max_tokens": 300, "messages": [{"role": "user", "content": "hello"}], **fields}


def spoken(sdk: anthropic.Anthropic, body: Json, *, stream: bool) -> Json:
    """A reply without what belongs to each draw."""
    if stream:
        with sdk.messages.stream(**body) as events:
            message = events.get_final_message()
    else:
        message = sdk.messages.create(**body)
    told: Json = message.model_dump(mode="json", exclude_none=True, exclude={"id": True})
    for block in told["content"]:
        for name in ("id", "parsed_output", "__json_buf"):
            block.pop(name, None)
    return told


def post(engine: FakeEngine, body: Any, path: str = "/v1/messages") -> httpx.Response:
    return httpx.post(engine.url + path, json=body)


def events(answer: httpx.Response) -> list[Json]:
    """The events of a stream, each under the name that is its type."""
    told = []
    for frame in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {told[-1]['type']}"
    return told


@AS_STREAM
def test_a_reply_is_blocks(sdk: anthropic.Anthropic, engine: FakeEngine, *, stream: bool) -> None:
    """Thought, words and calls, in the client's own types."""
    engine.script(CALLED)
    told = spoken(sdk, hello(tools=[ADD]), stream=stream)
    thought, words, *calls = told["content"]

    assert (thought["type"], thought["thinking"]) == ("thinking", "hm")
    assert thought["signature"]
    assert words["text"] == "let me see"
    assert [(call["name"], call["input"]) for call in calls] == [("add", {"a": 1}), ("add", {"a": 2})]
    assert (told["role"], told["model"], told["stop_reason"]) == ("assistant", "tiny", "tool_use")


@pytest.mark.parametrize("said", [CALLED, Say("so be it"), Say("")], ids=["calls", "text", "empty"])
def test_a_stream_and_a_whole_reply_are_one(sdk: anthropic.Anthropic, engine: FakeEngine, said: Say) -> None:
    """To the last block and the usage."""
    engine.script(said, said)
    whole, streamed = (spoken(sdk, hello(tools=[ADD]), stream=stream) for stream in (False, True))

    assert whole == streamed


@AS_STREAM
@pytest.mark.parametrize(
    ("said", "fields", "reason"),
    [
        (Say("so be it"), {}, ("end_turn", None)),
        (Say("so be it", finish="length"), {}, ("max_tokens", None)),
        (Say("one END two"), {"stop_sequences": ["END"]}, ("stop_sequence", "END")),
    ],
    ids=["end_turn", "max_tokens", "stop_sequence"],
)
def test_why_a_reply_ended(
    sdk: anthropic.Anthropic, engine: FakeEngine, said: Say, fields: Json, reason: Any, *, stream: bool
) -> None:
    """In Anthropic's words."""
    engine.script(said)
    told = spoken(sdk, hello(**fields), stream=stream)

    assert (told["stop_reason"], told.get("stop_sequence")) == reason


def test_events_come_in_anthropics_order(engine: FakeEngine) -> None:
    """Each block is opened, told and closed before the next; the end and the usage come last."""
    engine.script(CALLED)
    told = events(post(engine, hello(tools=[ADD], stream=True)))
    blocks = [event for event in told if "index" in event]

    assert [event["type"] for event in told[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in told[-2:]] == ["message_delta", "message_stop"]
    assert [event["index"] for event in blocks] == sorted(event["index"] for event in blocks)
    for index, deltas in enumerate(
        [{"thinking_delta", "signature_delta"}, {"text_delta"}, *[{"input_json_delta"}] * 2]
    ):
        first, *middle, last = [event for event in blocks if event["index"] == index]
        assert (first["type"], last["type"]) == ("content_block_start", "content_block_stop")
        assert {event["delta"]["type"] for event in middle} == deltas


def test_a_conversation_is_the_prompt_that_chat_makes_of_it(engine: FakeEngine) -> None:
    """Roles, parts, thoughts, calls and results: the tokens are the same, and so is the draw."""
    asked = hello(messages=EARLIER, system="be brief", tools=[ADD], temperature=0, top_k=1)
    in_chat = {"model": "tiny", "max_tokens": 300, "temperature": 0, "top_k": 1, "tools": [ADD_IN_CHAT]}
    in_chat["tools"][0]["function"]["parameters"] = ADD["input_schema"]  # type: ignore[index]
    one = post(engine, asked).json()
    other = post(engine, in_chat | {"messages": EARLIER_IN_CHAT}, "/v1/chat/completions").json()

    assert one["usage"]["input_tokens"] == other["usage"]["prompt_tokens"]
    assert one["usage"]["output_tokens"] == other["usage"]["completion_tokens"]
    assert one["content"][-1]["text"] == other["choices"][0]["message"]["content"]


def test_tokens_are_counted_as_they_are_read(sdk: anthropic.Anthropic) -> None:
    """The count is the usage of the same body."""
    body = hello(messages=EARLIER, system=[{"type": "text", "text": "be brief"}], tools=[ADD])
    counted = sdk.messages.count_tokens(**{name: value for name, value in body.items() if name != "max_tokens"})

    assert counted.input_tokens == sdk.messages.create(**body).usage.input_tokens


@AS_STREAM
def test_thoughts_can_be_turned_off(sdk: anthropic.Anthropic, *, stream: bool) -> None:
    """As Anthropic's clients do it."""
    told = spoken(sdk, hello(thinking={"type": "disabled"}), stream=stream)

    assert [block["type"] for block in told["content"]] == ["text"]


def test_seeds_and_ids_are_lost(engine: FakeEngine) -> None:
    """As on the real engines: SGLang draws with the one seed that it gives to all, and nobody tells of ids."""
    bodies = [hello(seed=seed, logprobs=True, return_token_ids=True) for seed in (1, 2)]
    one, other = (post(engine, body).text for body in bodies)

    assert "token_ids" not in one
    assert "logprob" not in one
    if engine._engine.kind == "sglang":
        assert json.loads(one)["content"] == json.loads(other)["content"]


@AS_STREAM
@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error")]
)
def test_errors_are_anthropics(engine: FakeEngine, status: int, kind: str, *, stream: bool) -> None:
    """The envelope and the name, with the engine's words."""
    engine.script(Fault.status(status))
    answer = post(engine, hello(stream=stream))

    assert answer.status_code == status
    assert answer.json() == {"type": "error", "error": {"type": kind, "message": "scripted"}}


@pytest.mark.parametrize(
    "body",
    [
        {},
        hello(messages=[]),
        hello(messages=[1]),
        hello(messages="hello"),
        hello(max_tokens=None),
        hello(max_tokens=0),
        hello(messages=[{"role": "user", "content": [{"type": "document"}]}]),
        hello(messages=[{"role": "user", "content": [{"type": "text", "text": 1}]}]),
        hello(stop_sequences=[1]),
        hello(tools=[ADD], tool_choice={"type": "tool"}),
        hello(temperature=-1),
    ],
)
def test_a_body_that_is_none_is_refused(engine: FakeEngine, body: Json) -> None:
    """In Anthropic's form, whoever found the fault; no draw is made."""
    answer = post(engine, body)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert (len(engine.requests), len(engine.refused)) == (0, 1)


def test_a_stream_may_break_with_an_error(sdk: anthropic.Anthropic, engine: FakeEngine) -> None:
    """Of which the client tells as of any other."""
    engine.script(Fault.error_frame(4, CALLED))

    with pytest.raises(anthropic.APIStatusError, match="the engine broke"):
        spoken(sdk, hello(tools=[ADD]), stream=True)


@AS_STREAM
def test_a_connection_may_be_cut(engine: FakeEngine, *, stream: bool) -> None:
    """After so many of these events, or in the middle of a whole reply."""
    engine.script(Fault.cut(4, CALLED))
    told = list[str]()
    with (
        httpx.stream("POST", f"{engine.url}/v1/messages", json=hello(tools=[ADD], stream=stream)) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        told.extend(answer.iter_lines())

    assert answer.status_code == 200
    assert len([line for line in told if line.startswith("event: ")]) == (4 if stream else 0)


def test_a_fault_finds_its_request_by_its_chat_form(engine: FakeEngine) -> None:
    """One way to name a request, whatever API it comes in."""
    engine.script_when(lambda body: body["messages"][0] == {"role": "system", "content": "be brief"}, Fault.status(503))
    statuses = [post(engine, hello(**fields)).status_code for fields in ({}, {"system": "be brief"}, {})]

    assert statuses == [200, 503, 200]
    assert [received.body.get("system") for received in engine.requests] == [None, "be brief", None]


@AS_STREAM
def test_a_call_is_aborted_with_what_it_has(sdk: anthropic.Anthropic, engine: FakeEngine, *, stream: bool) -> None:
    """A partial reply; the API has no name for it, and SGLang's own route passes it for an end."""
    engine.script(Fault.abort(3, CALLED))
    told = spoken(sdk, hello(tools=[ADD]), stream=stream)

    assert told["usage"]["output_tokens"] == 3
    assert told["stop_reason"] == "end_turn"
