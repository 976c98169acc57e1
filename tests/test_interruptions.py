"""A reply that its engine ends by an abort goes on until it really ends, and nobody sees a seam."""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.fakes.tokens import decode
from tests.served import RolloutClient, served, settings_for

Json = dict[str, Any]
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
TALK = {"max_tokens": 40, "min_tokens": 30}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start a proxy in front of an engine of its own."""
    with ExitStack() as running:
        number = iter(range(100))

        def start_one(kind: Any, *, engine: Json | None = None, **fields: Any) -> tuple[RolloutClient, FakeEngine]:
            folder = tmp_path / str(next(number))
            folder.mkdir()
            fake = running.enter_context(FakeEngine(kind, **(engine or {})))
            proxy = running.enter_context(served(settings_for(folder, fake.url, **fields)))
            return proxy.rollout(group="g"), fake

        yield start_one


def told(client: RolloutClient, text: str = "hello", *, stream: bool, **fields: Any) -> Json:
    """The message that a client puts together, and how it ended."""
    if not stream:
        answer = client.chat(text, **fields)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        message = {name: value for name, value in choice["message"].items() if value and name != "role"}
        return message | {"finish": choice["finish_reason"]}
    events = client.stream(text, **fields)
    return put_together(events)


def put_together(events: list[Json]) -> Json:
    message: Json = {}
    for choice in (choice for event in events for choice in event["choices"]):
        for name in ("content", "reasoning_content"):
            if choice["delta"].get(name):
                message[name] = message.get(name, "") + choice["delta"][name]
        for piece in choice["delta"].get("tool_calls") or ():
            calls = message.setdefault("tool_calls", [])
            if piece["index"] == len(calls):
                calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
            for name, text in piece["function"].items():
                calls[piece["index"]]["function"][name] += text
        message["finish"] = choice["finish_reason"] or message.get("finish")
    return message


@AS_STREAM
@pytest.mark.parametrize("after", [1, 7, 29])
def test_an_interrupted_reply_is_the_uninterrupted_one_where_noise_hangs_on_positions(
    start: Any, *, stream: bool, after: int
) -> None:
    """SGLang in deterministic mode: the same ids, the same logprobs, the same message."""
    plain, _ = start("sglang")
    cut, engine = start("sglang")
    engine.script(Fault.abort(after))
    whole, resumed = told(plain, stream=stream, **TALK), told(cut, stream=stream, **TALK)
    once, twice = plain.call(), cut.call()

    assert resumed == whole
    assert twice["completion_token_ids"] == once["completion_token_ids"]
    assert twice["logprobs"] == pytest.approx(once["logprobs"])
    assert [(part["start"], part["end"]) for part in twice["segments"]] == [(0, after), (after, once_length(once))]
    assert {part["seed"] for part in twice["segments"]} == {once["seed"]["value"]}
    assert twice["usage"]["completion_tokens"] == once_length(once)
    assert len(engine.requests) == 2


def once_length(call: Json) -> int:
    return len(call["completion_token_ids"])


@AS_STREAM
def test_a_segment_gets_a_seed_of_its_own_where_noise_begins_anew(start: Any, *, stream: bool) -> None:
    """vLLM: the index of the segment joins the tuple; prompt and budget go on where the first part stopped."""
    client, engine = start("vllm")
    engine.script(Fault.abort(5))
    told(client, stream=stream, **TALK)
    call = client.call()
    first, second = (request.body for request in engine.requests)

    assert call["state"] == "done"
    assert [part["seed"] for part in call["segments"]] == [first["seed"], second["seed"]]
    assert first["seed"] != second["seed"]
    assert second["kv_transfer_params"]["prompt_token_ids"] == (
        call["prompt_token_ids"] + call["completion_token_ids"][:5]
    )
    assert (second["max_tokens"], second["min_tokens"]) == (35, 25)
    assert len(call["logprobs"]) == len(call["completion_token_ids"]) == call["usage"]["completion_tokens"]


@KINDS
@AS_STREAM
def test_thoughts_and_tool_calls_are_read_over_the_whole(start: Any, kind: str, *, stream: bool) -> None:
    """Wherever the cut falls: in the thought, behind it, inside the call."""
    say = Say("Well.", reasoning="Let me think.", calls=(ToolSay("add", '{"a": 1, "b": 2}'),))
    ids = say.ids(thinking=True)
    plain, straight = start(kind)
    straight.always(say)
    whole = told(plain, stream=stream, tools=[ADD])
    cut, engine = start(kind)
    for after in range(1, len(ids)):
        engine.script(Fault.abort(after, say), say)
        resumed = told(cut, f"cut {after}", stream=stream, tools=[ADD])

        assert without_ids(resumed) == without_ids(whole), after
        assert resumed["finish"] == "tool_calls"
    assert {call["state"] for call in cut.calls()} == {"done"}


@AS_STREAM
def test_an_end_token_under_an_abort_ends_the_reply(start: Any, *, stream: bool) -> None:
    """SGLang looks for aborts first: a reply whose last token ended it may still say `abort`; it never runs past it."""
    say = Say("All said.")
    client, engine = start("sglang")
    engine.script(Fault.abort(len(say.ids(thinking=True)), say), say)
    message = told(client, stream=stream)
    call = client.call()

    assert (message["content"], message["finish"]) == ("All said.", "stop")
    assert tuple(call["completion_token_ids"]) == say.ids(thinking=True)
    assert [(part["start"], part["end"]) for part in call["segments"]] == [
        (0, len(say.ids(thinking=True)) - 1),
        (len(say.ids(thinking=True)) - 1, len(say.ids(thinking=True))),
    ]


@KINDS
@AS_STREAM
def test_a_call_that_is_aborted_again_and_again_fails_with_all_that_came(
    start: Any, kind: str, *, stream: bool
) -> None:
    """Bounded by resume_attempts; the client may come back, and nothing was taken for a length."""
    client, engine = start(kind, resume_attempts=2)
    engine.always(Fault.abort(3))
    answer = client.chat(stream=stream, **TALK)
    call = client.call()

    assert answer.status_code == (200 if stream else 503)
    assert "resume_attempts" in answer.text
    assert (call["state"], call["failure"]["kind"], call["failure"]["retry_after_s"]) == ("failed", "engine_aborted", 1)
    assert len(call["completion_token_ids"]) == 9
    assert [(part["start"], part["end"]) for part in call["segments"]] == [(0, 3), (3, 6), (6, 9)]


@pytest.mark.parametrize(
    ("obstacle", "fields", "settings"),
    [
        ("stop_strings", {"stop": ["zzz"]}, {}),
        ("constrained", {"response_format": {"type": "json_object"}}, {}),
        ("penalties", {}, {"profiles": {"train": {"presence_penalty": 0.5}}}),
        ("resume_attempts", {}, {"resume_attempts": 0}),
    ],
)
@KINDS
def test_what_would_be_drawn_from_another_distribution_is_not_resumed(
    start: Any, kind: str, obstacle: str, fields: Json, settings: Json
) -> None:
    """The call fails as aborted and says why; a retry draws it as a whole, with the same seed."""
    client, engine = start(kind, **settings)
    engine.script(Fault.abort(3))
    answer = client.chat(**TALK, **fields)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert obstacle in answer.json()["error"]["message"]
    assert client.chat(**TALK, **fields).status_code == 200
    call = client.call()
    assert (call["state"], len(call["earlier_failures"]), len(call["segments"])) == ("done", 1, 1)


@AS_STREAM
def test_an_engine_that_cannot_read_the_whole_message_is_not_asked_on(start: Any, *, stream: bool) -> None:
    """vLLM without its scale-out endpoints."""
    client, engine = start("vllm", engine={"scale_out": False})
    engine.script(Fault.abort(3))

    assert "message_unreadable" in client.chat(stream=stream, **TALK).text
    assert client.call()["failure"]["kind"] == "engine_aborted"


@KINDS
@AS_STREAM
def test_a_call_aborted_before_its_first_token_is_simply_asked_again(start: Any, kind: str, *, stream: bool) -> None:
    """Its message is the engine's own, and it has one segment."""
    plain, _ = start(kind)
    client, engine = start(kind)
    engine.script(Fault.abort(0), Fault.abort(0))

    assert told(client, stream=stream, **TALK) == told(plain, stream=stream, **TALK)
    assert client.call()["completion_token_ids"] == plain.call()["completion_token_ids"]
    assert len(client.call()["segments"]) == 1


@KINDS
def test_a_call_aborted_before_its_first_token_tells_its_usage_once(start: Any, kind: str) -> None:
    """What the aborted part counted, which is nothing, is not shown."""
    client, engine = start(kind)
    engine.script(Fault.abort(0))
    events = client.stream(**TALK, stream_options={"include_usage": True})
    usages = [event["usage"] for event in events if event.get("usage")]

    assert [usage["completion_tokens"] for usage in usages] == [once_length(client.call())]


def test_no_exchange_with_sglang_goes_by_a_name_under_which_it_aborts_an_earlier_one(start: Any) -> None:
    """It does so by the name's beginning, two seconds after each stream: a part that has just begun must not be hit."""
    client, engine = start("sglang")
    engine.script(Fault.abort(5), Fault.abort(5))
    told(client, stream=True, **TALK)
    names = [request.body["rid"] for request in engine.requests]

    assert len(names) == 3
    assert not any(one.startswith(other) for one, other in itertools.permutations(names, 2))
    assert all(name.endswith(client.call()["call_id"]) for name in names)


@KINDS
@AS_STREAM
def test_an_abort_at_the_very_end_of_the_budget_is_an_end_by_length(start: Any, kind: str, *, stream: bool) -> None:
    """There is nothing left to ask for."""
    client, engine = start(kind)
    engine.script(Fault.abort(12))
    message = told(client, stream=stream, max_tokens=12, min_tokens=12)

    assert message["finish"] == "length"
    assert len(client.call()["completion_token_ids"]) == 12
    assert len(engine.requests) == 1


@KINDS
def test_the_choices_of_one_request_are_interrupted_on_their_own(start: Any, kind: str) -> None:
    """Two of three were aborted; all three come whole."""
    client, engine = start(kind)
    for after in (3, 9):
        engine.script_when(is_first_part, Fault.abort(after))
    answer = client.chat(n=3, **TALK)

    assert answer.status_code == 200, answer.text
    assert sorted(len(call["segments"]) for call in client.calls()) == [1, 2, 2]
    assert len({tuple(call["completion_token_ids"]) for call in client.calls()}) == 3


def is_first_part(body: Json) -> bool:
    """Whether an engine is not asked to go on from ids."""
    return not {"input_ids", "kv_transfer_params"} & body.keys()


@KINDS
def test_a_client_that_asked_for_logprobs_gets_one_for_each_token(start: Any, kind: str) -> None:
    """In a stream too, where some were shown before the cut."""
    client, engine = start(kind)
    engine.script(Fault.abort(7))
    events = client.stream(logprobs=True, top_logprobs=2, **TALK)
    entries = [
        entry
        for event in events
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {}).get("content") or ()
    ]
    call = client.call()

    assert [entry["logprob"] for entry in entries] == pytest.approx(call["logprobs"])
    assert len(call["top_logprobs"]) == len(call["completion_token_ids"])


@AS_STREAM
def test_an_engine_that_does_not_go_on_from_the_ids_fails_the_call(start: Any, *, stream: bool) -> None:
    """A server that ignores exact prompts would answer the conversation anew, and the record would look right."""
    client, engine = start("vllm")
    engine.script(Fault.abort(7))
    read = engine._engine.dialect.read
    engine._engine.dialect.read = lambda body, headers, setup: read(  # type: ignore[method-assign]
        {name: value for name, value in body.items() if name != "kv_transfer_params"}, headers, setup
    )

    assert "resume_failed" in client.chat(stream=stream, **TALK).text
    assert client.call()["failure"]["kind"] == "resume_failed"


@KINDS
@AS_STREAM
def test_a_plain_completion_goes_on_as_well(start: Any, kind: str, *, stream: bool) -> None:
    """Its text is that of all ids; no parser has a say."""
    client, engine = start(kind)
    engine.script(Fault.abort(9))
    body = {"model": "policy", "prompt": "Count.", "max_tokens": 40, "min_tokens": 40, "stream": stream, "logprobs": 1}
    text = text_of(client.http.post("/completions", json=body))
    call = client.call()

    assert [(part["start"], part["end"]) for part in call["segments"]] == [(0, 9), (9, 40)]
    assert text == decode(call["completion_token_ids"], skip_special=True)
    assert call["message"]["content"] == text


def text_of(answer: httpx.Response) -> str:
    """The text of a completion, streamed or whole."""
    assert answer.status_code == 200, answer.text
    if "event-stream" not in answer.headers["content-type"]:
        return str(answer.json()["choices"][0]["text"])
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    return "".join(choice["text"] for line in lines[:-1] for choice in json.loads(line)["choices"])


def without_ids(message: Json) -> Json:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls}
