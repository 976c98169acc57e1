"""The Responses API of the simulated engine: OpenAI's own types are the judge, chat on the same engine the measure."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.fakes import FakeEngine, Fault, Say, ToolSay

Json = dict[str, Any]

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ADD: Json = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object"},
    "strict": False,
}


def in_chat(name: str, description: str = "Adds.", **schema: Any) -> Json:
    """A tool as chat knows it."""
    function = {"name": name, "description": description, "parameters": {"type": "object", **schema}}
    return {"type": "function", "function": function}


CALLED = Say("let me see", reasoning="hm", calls=(ToolSay("add", '{"a": 1}'), ToolSay("add", '{"a": 2}')))
TOOLS = [
    ADD,
    {"type": "namespace", "name": "agents", "description": "", "tools": [{**ADD, "name": "spawn"}]},
    {"type": "custom", "name": "patch", "description": "Patches."},
    {"type": "web_search"},
    {"type": "function", "name": "wait"},
]
EARLIER: list[Json] = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
    {"role": "user", "content": "one and one"},
    {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {
        "type": "message",
        "role": "assistant",
        "id": "m",
        "status": "completed",
        "content": [{"type": "output_text", "text": "let me see", "annotations": []}],
    },
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
    {"type": "function_call", "call_id": "c2", "name": "spawn", "namespace": "agents", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "x"},
    {"type": "function_call_output", "call_id": "c1", "output": "2"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
    {"type": "custom_tool_call_output", "call_id": "c3", "output": "ok"},
]


def call_in_chat(call_id: str, name: str, arguments: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


EARLIER_IN_CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one and one"},
    {
        "role": "assistant",
        "content": "let me see",
        "reasoning_content": "hm",
        "tool_calls": [
            call_in_chat("c1", "add", '{"a": 1}'),
            call_in_chat("c2", "agents__spawn", "{}"),
            call_in_chat("c3", "patch", '{"input": "x"}'),
        ],
    },
    *({"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in (("c1", "2"), ("c2", "done"))),
    {"role": "tool", "tool_call_id": "c3", "content": "ok"},
]


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    """One of each kind."""
    with FakeEngine(request.param) as fake:
        yield fake


def hello(**fields: Any) -> Json:
    return {"model": "tiny", "max_output_tokens": 300, "input": "hello", **fields}


def post(engine: FakeEngine, body: Any) -> httpx.Response:
    return httpx.post(f"{engine.url}/v1/responses", json=body)


def events(engine: FakeEngine, body: Json) -> list[Json]:
    """The events of a stream: each is valid, has its name, and the next number."""
    told = []
    for frame in post(engine, {**body, "stream": True}).text.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {told[-1]['type']}"
        EVENT.validate_python(told[-1])
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    return told


def respond(engine: FakeEngine, body: Json, *, stream: bool) -> Json:
    """The response at the end, held to the official types."""
    response: Json = events(engine, body)[-1]["response"] if stream else post(engine, body).json()
    Response.model_validate(response)
    return response


@AS_STREAM
def test_a_reply_is_items(engine: FakeEngine, *, stream: bool) -> None:
    """Thought, words and calls."""
    engine.script(CALLED)
    response = respond(engine, hello(tools=[ADD]), stream=stream)
    thought, words, *calls = response["output"]

    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert [part["text"] for part in words["content"]] == ["let me see"]
    assert [(call["name"], call["arguments"]) for call in calls] == [("add", '{"a": 1}'), ("add", '{"a": 2}')]
    assert {item["status"] for item in response["output"]} == {"completed"} == {response["status"]}
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + response["usage"]["output_tokens"]


@pytest.mark.parametrize("said", [CALLED, Say("so be it"), Say("")], ids=["calls", "text", "empty"])
def test_a_stream_and_a_whole_reply_are_one(engine: FakeEngine, said: Say) -> None:
    """Save for the names that belong to each draw."""
    engine.script(said, said)
    whole, streamed = (respond(engine, hello(tools=[ADD]), stream=stream) for stream in (False, True))
    for response in (whole, streamed):
        for part in (response, *response["output"]):
            for name in ("id", "call_id", "created_at"):
                part.pop(name, None)

    assert whole == streamed


def test_events_open_fill_and_close_one_item_after_the_other(engine: FakeEngine) -> None:
    """Deltas make up the text that the end of an item tells."""
    engine.script(CALLED)
    told = events(engine, hello(tools=[ADD]))
    kinds = [event["type"].removeprefix("response.") for event in told]
    places = [event["output_index"] for event in told if "output_index" in event]

    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == "completed"
    assert places == sorted(places)
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 4
    for delta, done, name in [
        ("reasoning_text.delta", "reasoning_text.done", "text"),
        ("output_text.delta", "output_text.done", "text"),
        ("function_call_arguments.delta", "function_call_arguments.done", "arguments"),
    ]:
        grown = "".join(event["delta"] for event in told if event["type"] == f"response.{delta}")
        assert grown == "".join(event[name] for event in told if event["type"] == f"response.{done}")
        assert grown


@AS_STREAM
def test_tools_are_called_by_the_names_that_the_client_gave(engine: FakeEngine, *, stream: bool) -> None:
    """In a namespace, or with free text; what only OpenAI runs is not shown to the model."""
    engine.script(Say(calls=(ToolSay("agents__spawn"), ToolSay("patch", '{"input": "a line"}'))))
    spawn, patch = respond(engine, hello(tools=TOOLS), stream=stream)["output"][-2:]

    assert (spawn["type"], spawn["namespace"], spawn["name"]) == ("function_call", "agents", "spawn")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "a line")


def test_a_conversation_is_the_prompt_that_chat_makes_of_it(engine: FakeEngine) -> None:
    """Roles, parts, thoughts, calls and outputs: the tokens are the same, and so is the draw."""
    greedy = {"model": "tiny", "temperature": 0, "top_k": 1}
    patch = in_chat("patch", "Patches.", properties={"input": {"type": "string"}}, required=["input"])
    bare = {"type": "function", "function": {"name": "wait", "parameters": {}}}
    tools = [in_chat("add"), in_chat("agents__spawn"), patch, bare]
    one = post(engine, {**greedy, "max_output_tokens": 300, "input": EARLIER, "tools": TOOLS}).json()
    asked = {**greedy, "max_tokens": 300, "messages": EARLIER_IN_CHAT, "tools": tools}
    other = httpx.post(f"{engine.url}/v1/chat/completions", json=asked).json()

    assert one["usage"]["input_tokens"] == other["usage"]["prompt_tokens"]
    assert one["usage"]["output_tokens"] == other["usage"]["completion_tokens"]
    assert one["output"][-1]["content"][0]["text"] == other["choices"][0]["message"]["content"]


def test_a_thought_is_sealed_for_who_asks_and_read_out_of_the_seal(engine: FakeEngine) -> None:
    """A client that echoes the seal alone goes on from the same prompt as one that echoes the text."""
    engine.script(Say("so be it", reasoning="hm"))
    thought = respond(engine, hello(include=["reasoning.encrypted_content"], store=False), stream=False)["output"][0]
    prompts = [
        post(engine, hello(input=[*EARLIER[:2], {**thought, **echoed}, *EARLIER[3:]])).json()["usage"]["input_tokens"]
        for echoed in ({"encrypted_content": None}, {"content": None}, {"content": None, "encrypted_content": "alien"})
    ]

    assert thought["encrypted_content"]
    assert prompts[0] == prompts[1] > prompts[2]


@AS_STREAM
def test_a_reply_that_is_cut_by_its_length_is_incomplete(engine: FakeEngine, *, stream: bool) -> None:
    """And so is its last item."""
    engine.script(Say("so be it", reasoning="hm", finish="length"))
    response = respond(engine, hello(), stream=stream)

    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


@AS_STREAM
def test_an_aborted_call_has_failed(engine: FakeEngine, *, stream: bool) -> None:
    """As on SGLang's own route."""
    engine.script(Fault.abort(3, CALLED))
    response = respond(engine, hello(tools=[ADD]), stream=stream)

    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")


def test_ids_are_lost_and_on_sglang_seeds_too(engine: FakeEngine) -> None:
    """vLLM's route takes a seed; SGLang's draws with the one that it gives to all."""
    bodies = [hello(seed=seed, logprobs=True, return_token_ids=True) for seed in (1, 2, 1)]
    texts = [[item["content"] for item in post(engine, body).json()["output"]] for body in bodies]

    assert "token_ids" not in post(engine, bodies[0]).text
    assert texts[0] == texts[2]
    assert (texts[0] == texts[1]) == (engine._engine.kind == "sglang")


@AS_STREAM
def test_errors_are_nested(engine: FakeEngine, *, stream: bool) -> None:
    """On SGLang too, whose chat has them flat."""
    engine.script(Fault.status(500))
    answer = post(engine, hello(stream=stream))

    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "scripted"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"input": None}, 400),
        ({"input": []}, 400),
        ({"input": [1]}, 400),
        ({"input": [{"type": "computer_call"}]}, 400),
        ({"input": [{"type": "message", "content": "x"}]}, 400),
        ({"tools": [{}]}, 400),
        ({"instructions": 1}, 400),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, 400),
        ({"temperature": -1}, 400),
        ({"background": True}, 400),
        ({"previous_response_id": "resp_1"}, 404),
    ],
)
def test_a_body_that_is_none_is_refused(engine: FakeEngine, fields: Json, status: int) -> None:
    """Whoever found the fault, and for what would have to be kept; no draw is made."""
    answer = post(engine, hello(**fields))

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status
    assert (len(engine.requests), len(engine.refused)) == (0, 1)


def test_a_stream_may_break_with_an_error(engine: FakeEngine) -> None:
    """A failed response under the next number."""
    engine.script(Fault.error_frame(5, CALLED))
    told = events(engine, hello(tools=[ADD]))

    assert len(told) == 6
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"]["error"] == {"code": "server_error", "message": "the engine broke"}


def test_the_official_client_reads_a_stream(engine: FakeEngine) -> None:
    """With its own helper."""
    engine.script(CALLED)
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as sdk:
        asked: Any = hello(tools=[ADD])
        with sdk.responses.stream(**asked) as stream:
            response = stream.get_final_response()

    assert response.output_text == "let me see"
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
