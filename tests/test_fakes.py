"""The fake engines answer in the shapes seen of the real ones, and break as they are told to."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.fakes.tokens import CALL_END, CALL_START, THINK_END, TURN_END, decode, encode
from tests.patience import PATIENCE_S, until

Json = dict[str, Any]

NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
HELLO = [{"role": "user", "content": "hello there"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
WANTS_IDS = {
    "vllm": {"return_token_ids": True},
    "sglang": {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
}
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
AS_STREAM = pytest.mark.parametrize("as_stream", [False, True])
SEVERAL_SEEDS = range(1, 13)
CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)

# Keys as seen in replies of vLLM 0.32.0 and SGLang 0.5.23.
VLLM_WHOLE = {
    "id",
    "object",
    "created",
    "model",
    "choices",
    "service_tier",
    "system_fingerprint",
    "usage",
    "prompt_logprobs",
    "prompt_token_ids",
    "prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
}
VLLM_CHOICE = {
    "index",
    "message",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "token_ids",
    "routed_experts",
}
VLLM_MESSAGE = {"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}
VLLM_USAGE = {
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
}
CHUNK = {"id", "object", "created", "model", "choices"}
SGLANG_WHOLE = {"id", "object", "created", "model", "choices", "usage", "metadata"}
SGLANG_CHOICE = {"index", "message", "logprobs", "finish_reason", "matched_stop"}
SGLANG_USAGE = VLLM_USAGE | {"reasoning_tokens"}
TOKEN = {"token", "logprob", "bytes", "top_logprobs"}


@pytest.fixture
def vllm() -> Iterator[FakeEngine]:
    with FakeEngine("vllm") as engine:
        yield engine


@pytest.fixture
def sglang() -> Iterator[FakeEngine]:
    with FakeEngine("sglang") as engine:
        yield engine


@pytest.fixture
def start() -> Iterator[Callable[..., FakeEngine]]:
    """Start engines of any kind; they are stopped at the end."""
    started: list[FakeEngine] = []

    def start_one(kind: Any, **settings: Any) -> FakeEngine:
        started.append(FakeEngine(kind, **settings))
        started[-1].start()
        return started[-1]

    yield start_one
    for engine in started:
        engine.stop()


def post(engine: FakeEngine, **body: Any) -> httpx.Response:
    asked = {"model": "tiny", "messages": HELLO, **NEUTRAL, "max_tokens": 40, **body}
    asked = {name: value for name, value in asked.items() if value is not ...}
    return CLIENT.post(f"{engine.url}/v1/chat/completions", json=asked)


def chat(engine: FakeEngine, **body: Any) -> Json:
    response = post(engine, **body)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def stream(engine: FakeEngine, **body: Any) -> list[Json]:
    """The events of a stream that ended as it should."""
    response = post(engine, stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done = events_of(response.text)
    assert done == "[DONE]"
    return events


def choices(events: list[Json]) -> list[Json]:
    return [choice for event in events for choice in event["choices"]]


def output_ids(reply: Json) -> list[int]:
    if "sglext" in reply:
        return reply["sglext"]["output_ids"][0]  # type: ignore[no-any-return]
    return reply["choices"][0]["token_ids"]  # type: ignore[no-any-return]


def streamed_ids(events: list[Json]) -> list[int]:
    ids = [i for choice in choices(events) for i in choice.get("token_ids") or ()]
    return ids or next(output_ids(event) for event in events if "sglext" in event)


def told_logprobs(held: list[Json]) -> list[float]:
    return [token["logprob"] for choice in held if choice["logprobs"] for token in choice["logprobs"]["content"]]


# --- shapes ---


def test_vllm_whole_reply_has_the_keys_of_the_real_one(vllm: FakeEngine) -> None:
    """Reasoning under `reasoning`, ids in the choice and at the top."""
    reply = chat(vllm, seed=7, return_token_ids=True, logprobs=True, top_logprobs=2)
    choice = reply["choices"][0]

    assert set(reply) == VLLM_WHOLE
    assert set(choice) == VLLM_CHOICE
    assert set(choice["message"]) == VLLM_MESSAGE
    assert set(reply["usage"]) == VLLM_USAGE
    assert set(choice["logprobs"]["content"][0]) == TOKEN
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == reply["usage"]["completion_tokens"]
    assert (choice["token_ids"][-1], choice["finish_reason"], choice["stop_reason"]) == (TURN_END, "stop", None)
    assert choice["message"]["reasoning"]
    assert choice["message"]["content"]


def test_vllm_gives_ids_and_logprobs_only_when_asked(vllm: FakeEngine) -> None:
    """The keys are there, with nulls."""
    reply = chat(vllm)

    assert set(reply) == VLLM_WHOLE
    assert reply["prompt_token_ids"] is None
    assert reply["choices"][0]["token_ids"] is reply["choices"][0]["logprobs"] is None


def test_vllm_stream_has_the_keys_of_the_real_one(vllm: FakeEngine) -> None:
    """A role chunk with the prompt's ids, chunks with ids, usage, and the mark."""
    wanted = {"return_token_ids": True, "logprobs": True, "stream_options": {"include_usage": True}}
    first, *middle, last, usage = stream(vllm, seed=7, **wanted)

    assert set(first) == CHUNK | {"prompt_token_ids", "prompt_text"}
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    token_keys = {"index", "delta", "logprobs", "finish_reason", "token_ids"}
    assert all(set(c) == token_keys and len(c["token_ids"]) == 1 for c in choices(middle))
    assert set(last["choices"][0]) == token_keys | {"stop_reason"}
    assert last["choices"][0]["delta"] == {}
    assert set(usage) == CHUNK | {"usage", "system_fingerprint"}
    assert usage["choices"] == []


def test_vllm_stream_without_usage_marks_its_last_chunk(vllm: FakeEngine) -> None:
    """The fingerprint rides on the finish chunk; nothing is told of swallowed tokens nobody asked for."""
    events = stream(vllm, seed=7)

    assert set(events[-1]) == CHUNK | {"system_fingerprint"}
    assert all(c["delta"] or c["finish_reason"] for c in choices(events))
    assert {type(c["token_ids"]) for c in choices(events[1:])} == {type(None)}


def test_sglang_whole_reply_has_the_keys_of_the_real_one(sglang: FakeEngine) -> None:
    """Reasoning under `reasoning_content`, ids under names of its own, weight versions beside."""
    reply = chat(sglang, seed=7, return_token_ids=True, logprobs=True)
    choice = reply["choices"][0]
    end = reply["usage"]["completion_tokens"]

    assert set(reply) == SGLANG_WHOLE
    assert set(choice) == SGLANG_CHOICE | {"prompt_token_ids", "response_token_ids"}
    assert set(choice["message"]) == {"role", "content", "reasoning_content"}
    assert set(reply["usage"]) == SGLANG_USAGE
    assert set(choice["logprobs"]["content"][0]) == TOKEN
    spans = [{"version": "default", "start": 0, "end": end}]
    assert reply["metadata"] == {"weight_version": "default", "weight_versions": spans}
    assert (choice["response_token_ids"][-1], choice["matched_stop"]) == (TURN_END, TURN_END)


def test_sglang_stream_has_the_keys_of_the_real_one(sglang: FakeEngine) -> None:
    """Role first; finish, ids and usage each in a chunk of their own, in this order."""
    wanted = {**WANTS_IDS["sglang"], "logprobs": True, "stream_options": {"include_usage": True}}
    first, *middle, finish, ids, usage = stream(sglang, seed=7, **wanted)

    assert all(set(event) == CHUNK for event in (first, *middle, finish))
    keys = {"index", "delta", "logprobs", "finish_reason", "matched_stop"}
    assert all(set(c) == keys for c in choices([first, *middle, finish]))
    assert first["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert finish["choices"][0]["delta"] == {"reasoning_content": None}
    assert (finish["choices"][0]["logprobs"], finish["choices"][0]["matched_stop"]) == (None, TURN_END)
    assert set(ids) == CHUNK | {"usage", "sglext"}
    assert (ids["choices"], ids["usage"], set(ids["sglext"])) == ([], None, {"input_ids", "output_ids"})
    assert set(usage) == CHUNK | {"usage"}
    assert len(told_logprobs(choices(middle))) == len(output_ids(ids)) == usage["usage"]["completion_tokens"]


def test_sglang_reply_to_nothing_said_is_an_empty_string(sglang: FakeEngine) -> None:
    """Content is never null."""
    message = chat(sglang, logit_bias={str(TURN_END): 100})["choices"][0]["message"]

    assert message == {"role": "assistant", "content": "", "reasoning_content": None}


def test_sglang_frames_the_ids_when_a_header_asks(sglang: FakeEngine) -> None:
    """The event gets a name; the headers ask for ids too."""
    headers = {"x-sglext-return-output-ids": "1", "x-sglext-ids-framed": "1"}
    body = {"model": "tiny", "messages": HELLO, "stream": True, "max_tokens": 3}
    text = CLIENT.post(f"{sglang.url}/v1/chat/completions", json=body, headers=headers).text

    assert 'event: sglext_ids\ndata: {"id"' in text


@KINDS
def test_streamed_and_whole_replies_hold_the_same(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Ids, logprobs and text agree, with several tokens per event as well."""
    for engine in (start(kind), start(kind, tokens_per_event=3)):
        wanted = {"seed": 7, "logprobs": True, **WANTS_IDS[kind]}
        whole, events = chat(engine, **wanted), stream(engine, **wanted)
        message = whole["choices"][0]["message"]
        deltas = [c["delta"] for c in choices(events)]
        reasoning = "reasoning" if kind == "vllm" else "reasoning_content"

        assert streamed_ids(events) == output_ids(whole)
        assert told_logprobs(choices(events)) == told_logprobs(whole["choices"])
        assert "".join(d.get("content") or "" for d in deltas) == message["content"]
        assert "".join(d.get(reasoning) or "" for d in deltas) == message[reasoning]


def test_accented_letters_make_tokens_that_add_no_text(vllm: FakeEngine) -> None:
    """The first byte shows nothing; the second shows the letter with both bytes."""
    replies = [stream(vllm, seed=s, return_token_ids=True, logprobs=True) for s in SEVERAL_SEEDS]
    told = [choice for events in replies for choice in choices(events[1:])]
    place = next(i for i, choice in enumerate(told) if choice["token_ids"] == [0xC3])

    assert told[place]["delta"] == {}
    assert (told[place]["logprobs"]["content"][0]["token"], told[place]["logprobs"]["content"][0]["bytes"]) == ("", [])
    assert len(told[place + 1]["logprobs"]["content"][0]["bytes"]) == 2


# --- drawing ---


@KINDS
def test_a_seed_gives_the_same_tokens_again(kind: str, start: Callable[..., FakeEngine]) -> None:
    """And another seed gives others."""
    engine, asked = start(kind), {"max_tokens": 500, **WANTS_IDS[kind]}
    drawn = {s: output_ids(chat(engine, seed=s, **asked)) for s in SEVERAL_SEEDS}

    assert drawn[3] == output_ids(chat(engine, seed=3, **asked))
    assert len({tuple(ids) for ids in drawn.values()}) == len(drawn)
    assert all(ids[-1] == TURN_END and THINK_END in ids for ids in drawn.values())


def test_without_a_seed_vllm_draws_anew_and_deterministic_sglang_draws_with_42(
    vllm: FakeEngine, sglang: FakeEngine
) -> None:
    """The proxy must send a seed to either."""
    ids = WANTS_IDS["vllm"]
    assert output_ids(chat(vllm, **ids)) != output_ids(chat(vllm, **ids))
    assert output_ids(chat(vllm, seed=-1, **ids)) != output_ids(chat(vllm, seed=-1, **ids))

    ids = WANTS_IDS["sglang"]
    assert output_ids(chat(sglang, **ids)) == output_ids(chat(sglang, seed=42, **ids))


def test_sglang_without_its_flag_ignores_the_seed(start: Callable[..., FakeEngine]) -> None:
    """Twice the same seed, two replies; and it says so."""
    engine = start("sglang", deterministic=False)
    ids = WANTS_IDS["sglang"]

    assert output_ids(chat(engine, seed=7, **ids)) != output_ids(chat(engine, seed=7, **ids))
    info = CLIENT.get(f"{engine.url}/server_info").json()
    assert info["enable_deterministic_inference"] is False


@KINDS
@pytest.mark.parametrize("left_out", ["temperature", "top_p", "top_k"])
def test_a_setting_left_out_is_the_engines_own(kind: str, left_out: str, start: Callable[..., FakeEngine]) -> None:
    """So the tokens differ from those under neutral settings; sending what the engine would take doesn't."""
    engine, ids = start(kind), WANTS_IDS[kind]
    recommended = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}[left_out]
    leaked = output_ids(chat(engine, seed=7, **ids, **{left_out: ...}))

    assert leaked != output_ids(chat(engine, seed=7, **ids))
    assert leaked == output_ids(chat(engine, seed=7, **ids, **{left_out: recommended}))


def test_n_choices_have_seeds_of_their_own_on_vllm_only(vllm: FakeEngine, sglang: FakeEngine) -> None:
    """Choice i is seed + i on vLLM; SGLang says the same thing n times."""
    three = chat(vllm, seed=7, n=3, return_token_ids=True)["choices"]
    alone = [output_ids(chat(vllm, seed=7 + i, return_token_ids=True)) for i in range(3)]
    same = chat(sglang, seed=7, n=3, return_token_ids=True)["choices"]

    assert [c["token_ids"] for c in three] == alone
    assert len({tuple(c["response_token_ids"]) for c in same}) == 1


def test_sglang_goes_on_where_a_resumed_prompt_stops(sglang: FakeEngine) -> None:
    """Prompt and partial output with the same seed: the rest, logprobs included."""
    asked = {"logprobs": True, "max_tokens": 500, **WANTS_IDS["sglang"]}
    for seed in SEVERAL_SEEDS:
        reply = chat(sglang, seed=seed, **asked)
        ids, prompt = output_ids(reply), reply["sglext"]["input_ids"]
        for k in range(0, len(ids), 3):
            rest = chat(sglang, seed=seed, input_ids=prompt + ids[:k], **asked)
            assert output_ids(rest) == ids[k:]
            assert told_logprobs(rest["choices"]) == told_logprobs(reply["choices"])[k:]


def test_vllm_does_not_go_on_where_a_resumed_prompt_stops(vllm: FakeEngine) -> None:
    """Its stream of noise starts again."""
    reply = chat(vllm, seed=7, return_token_ids=True)
    ids = output_ids(reply)
    given = {"prompt_token_ids": reply["prompt_token_ids"] + ids[:3]}

    assert output_ids(chat(vllm, seed=7, return_token_ids=True, kv_transfer_params=given)) != ids[3:]


@KINDS
def test_max_tokens_cuts(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Finish `length`, and the logprobs are floats that 32 bits hold."""
    choice = chat(start(kind), seed=7, max_tokens=3, logprobs=True)["choices"][0]

    assert choice["finish_reason"] == "length"
    assert len(told_logprobs([choice])) == 3
    assert all(lp <= 0 and struct.unpack("f", struct.pack("f", lp))[0] == lp for lp in told_logprobs([choice]))


@KINDS
def test_a_stop_string_cuts_the_text_but_not_the_ids(kind: str, start: Callable[..., FakeEngine]) -> None:
    """The token that completed it stays."""
    engine = start(kind)
    engine.script(Say("one two three"))
    reply = chat(engine, stop=["two"], **WANTS_IDS[kind])
    choice = reply["choices"][0]

    assert choice["message"]["content"] == "one "
    assert decode(output_ids(reply)).endswith("one two")
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason" if kind == "vllm" else "matched_stop"] == "two"


# --- prompts ---


def test_vllm_takes_exact_prompt_ids_and_checks_them(vllm: FakeEngine) -> None:
    """They come back as they were; bad ones are refused."""
    given = [*encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"), 100]
    reply = chat(vllm, return_token_ids=True, kv_transfer_params={"prompt_token_ids": given})
    refused = [post(vllm, kv_transfer_params={"prompt_token_ids": bad}) for bad in ([], [300], [-1])]

    assert reply["prompt_token_ids"] == given
    assert [r.status_code for r in refused] == [400, 400, 400]
    assert "Token id 300 is out of vocabulary" in refused[1].json()["error"]["message"]


def test_sglang_takes_exact_prompt_ids(sglang: FakeEngine) -> None:
    """Beside messages, which may not be empty."""
    reply = chat(sglang, input_ids=[1, 50, 60], return_token_ids=True)

    assert reply["choices"][0]["prompt_token_ids"] == [1, 50, 60]
    assert post(sglang, input_ids=[1], messages=[]).json()["message"] == "Messages cannot be empty."


@pytest.mark.parametrize("deadly", [{"input_ids": [1, 300]}, {"input_ids": [-1]}, {"min_p": 0.1, "seed": 7}])
def test_some_requests_kill_sglang(deadly: Json, sglang: FakeEngine) -> None:
    """Nobody answers afterwards, until it is started again."""
    with pytest.raises(httpx.TransportError):
        post(sglang, **deadly)
    with pytest.raises(httpx.ConnectError):
        CLIENT.get(f"{sglang.url}/health")

    sglang.restart()
    assert chat(sglang, seed=1)


@KINDS
def test_an_echoed_turn_renders_as_it_was_printed(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Under the engine's own field for reasoning, and lost under the other's."""
    engine = start(kind)
    engine.script(Say("well", reasoning="hm", calls=(ToolSay("add", '{"a": 1}'),)))
    reply = chat(engine, tools=[ADD], max_tokens=200, **WANTS_IDS[kind])
    prompt = reply["prompt_token_ids"] if kind == "vllm" else reply["sglext"]["input_ids"]
    result = {"role": "tool", "content": "2", "tool_call_id": "x"}
    told = [*HELLO, reply["choices"][0]["message"], result]
    asked = {"messages": told, "tools": [ADD]}
    tokens = CLIENT.post(f"{engine.url}/tokenize", json=asked).json()["tokens"]

    assert decode(tokens).startswith(decode(prompt + output_ids(reply)) + "\n<|im_start|>user\n<tool_response>")


def test_each_engine_knows_one_name_for_reasoning(vllm: FakeEngine, sglang: FakeEngine) -> None:
    """vLLM's chat also takes the other one, its /tokenize does not."""

    def prompt(engine: FakeEngine, **turn: Any) -> str:
        messages = [*HELLO, {"role": "assistant", "content": "a", **turn}, *HELLO]
        reply = chat(engine, messages=messages, return_token_ids=True)
        return decode(reply.get("prompt_token_ids") or reply["choices"][0]["prompt_token_ids"])

    assert "<think>hm</think>a" in prompt(vllm, reasoning="hm")
    assert "<think>hm</think>a" in prompt(vllm, reasoning_content="hm")
    assert "<think>hm</think>a" in prompt(sglang, reasoning_content="hm")
    assert "<think>" not in prompt(sglang, reasoning="hm")


def test_echoed_invalid_arguments_are_refused_by_sglang_and_emptied_by_vllm(
    vllm: FakeEngine, sglang: FakeEngine
) -> None:
    """Unless SGLang is given the ids."""
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": "{bad"}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, *HELLO]
    emptied = decode(chat(vllm, messages=messages, return_token_ids=True)["prompt_token_ids"])
    refused = post(sglang, messages=messages)

    assert '"arguments": {}' in emptied
    assert (refused.status_code, refused.json()["code"]) == (400, 400)
    assert chat(sglang, messages=messages, input_ids=[1, 2])


@KINDS
def test_thinking_can_be_switched_off(kind: str, start: Callable[..., FakeEngine]) -> None:
    """The prompt ends in an empty thought and all words are content."""
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    engine = start(kind)
    message = chat(engine, seed=7, **off)["choices"][0]["message"]
    asked = {"messages": HELLO, **off}
    tokens = CLIENT.post(f"{engine.url}/tokenize", json=asked).json()["tokens"]

    assert not message["reasoning" if kind == "vllm" else "reasoning_content"]
    assert message["content"]
    assert decode(tokens).endswith("<think></think>")


def test_tokenizing(vllm: FakeEngine, sglang: FakeEngine) -> None:
    """There and back, in each engine's words."""
    text = "<|im_start|>né"
    ids = list(encode(text))
    there = [CLIENT.post(f"{e.url}/tokenize", json={"prompt": text}).json() for e in (vllm, sglang)]
    back = [CLIENT.post(f"{e.url}/detokenize", json={"tokens": ids}).json() for e in (vllm, sglang)]

    assert there[0] == {"count": 4, "max_model_len": 4096, "tokens": ids, "token_strs": None}
    assert there[1] == {"tokens": ids, "count": 4, "max_model_len": 4096}
    assert back == [{"prompt": text}, {"text": "né"}]


# --- refusals ---


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "nope"}, 404, "The model `nope` does not exist."),
        ({"max_tokens": 5000}, 400, "max_tokens=5000 cannot be greater than max_model_len=4096"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "maximum context length is 4096"),
        ({"messages": []}, 400, "Provide at least one message."),
        ({"messages": ...}, 400, "Field required"),
        ({"logit_bias": {"5000": 1}}, 400, "Vocabulary size: 300"),
        ({"seed": 2**63}, 400, "less than or equal"),
        ({"seed": 1.5}, 400, "fractional part"),
        ({"temperature": -1}, 400, "temperature must be non-negative, got -1.0."),
        ({"temperature": "hot"}, 400, "unable to parse string as a number"),
        ({"top_p": 0}, 400, "top_p must be in (0, 1], got 0.0."),
        ({"logprobs": True, "top_logprobs": 21}, 400, "max allowed: 20"),
    ],
)
def test_vllm_refuses(body: Json, status: int, words: str, vllm: FakeEngine) -> None:
    """In its own shape, in streams too, and a refused request costs no scripted item."""
    vllm.script(Say("kept"))
    for response in (post(vllm, **body), post(vllm, stream=True, **body)):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert words in response.json()["error"]["message"]

    assert (len(vllm.requests), len(vllm.refused)) == (0, 2)
    assert chat(vllm)["choices"][0]["message"]["content"] == "kept"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"stream": True, "return_token_ids": True}, "return_token_ids is not supported with streaming"),
        ({"max_tokens": 5000}, "max_completion_tokens is too large: 5000."),
        ({"input_ids": [5] * 5000}, "The input (5000 tokens) is longer than the model's context length"),
        ({"logit_bias": {"1048576": 0}}, "logit_bias must has keys in [0, 299], got 1048576."),
        ({"seed": 2**63}, "sampling_seed must be in [-2**63, 2**63 - 1]"),
        ({"seed": 1.5}, "fractional part"),
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1.0."),
        ({"temperature": "hot"}, "unable to parse string as a number"),
        ({"messages": []}, "Messages cannot be empty."),
    ],
)
def test_sglang_refuses(body: Json, words: str, sglang: FakeEngine) -> None:
    """Flat, always with 400."""
    response = post(sglang, **body)

    assert response.status_code == 400
    assert set(response.json()) == {"object", "message", "type", "param", "code"}
    assert words in response.json()["message"]


def test_what_is_unknown_is_ignored(vllm: FakeEngine, sglang: FakeEngine) -> None:
    """Fields on both, the model's name on SGLang; unknown paths are not."""
    assert chat(vllm, required_prefix_token_ids=[1], sampling_seed=3, foo={"a": 1})
    assert chat(sglang, model="nope", zzz=1)["model"] == "nope"
    assert CLIENT.get(f"{vllm.url}/nothing").json() == {"detail": "Not Found"}
    assert CLIENT.get(f"{vllm.url}/server_info").status_code == 404
    assert CLIENT.get(f"{vllm.url}/v1/chat/completions").json() == {"detail": "Method Not Allowed"}


def test_leaving_out_the_reasoning_costs_vllms_ids(vllm: FakeEngine) -> None:
    """Ids and logprobs become null, whole and streamed."""
    asked = {"include_reasoning": False, "return_token_ids": True, "logprobs": True}
    choice = chat(vllm, **asked)["choices"][0]
    events = stream(vllm, **asked)

    assert choice["token_ids"] is choice["logprobs"] is choice["message"]["reasoning"] is None
    assert not any(c.get("token_ids") or c["logprobs"] or "reasoning" in c["delta"] for c in choices(events))


# --- discovery ---


def test_the_engines_tell_themselves_apart(vllm: FakeEngine, sglang: FakeEngine) -> None:
    """By owner, version and flags."""
    models = [CLIENT.get(f"{e.url}/v1/models").json()["data"][0] for e in (vllm, sglang)]
    model_keys = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "simulated"}
    info = CLIENT.get(f"{sglang.url}/server_info").json()

    assert [set(m) for m in models] == [model_keys | {"permission"}, model_keys]
    assert [(m["owned_by"], m["max_model_len"]) for m in models] == [("vllm", 4096), ("sglang", 4096)]
    assert CLIENT.get(f"{vllm.url}/version").json() == {"version": "0.32.0", "simulated": True}
    assert (info["version"], info["enable_deterministic_inference"]) == ("0.5.23", True)
    assert (info["context_length"], info["allow_auto_truncate"]) == (4096, False)
    assert CLIENT.get(f"{sglang.url}/model_info").json()["weight_version"] == "default"
    for url in (f"{vllm.url}/health", f"{sglang.url}/health", f"{sglang.url}/ready"):
        assert CLIENT.get(url).status_code == 200


# --- scripts ---


@KINDS
def test_it_says_what_it_is_told(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Items are used up in order, then whatever is always said; the markup is in the ids."""
    engine = start(kind)
    engine.script(Say("hello", reasoning="hm"), Say("bye", finish="length"))
    engine.always(Say("again"))
    first, second, *rest = [chat(engine, **WANTS_IDS[kind]) for _ in range(4)]
    message = first["choices"][0]["message"]

    assert message["content"] == "hello"
    assert message["reasoning" if kind == "vllm" else "reasoning_content"] == "hm"
    assert decode(output_ids(first)) == "<think>hm</think>hello<|im_end|>"
    assert second["choices"][0]["finish_reason"] == "length"
    assert [r["choices"][0]["message"]["content"] for r in rest] == ["again", "again"]
    assert [r.body["max_tokens"] for r in engine.requests] == [40] * 4


@KINDS
def test_it_calls_tools(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Whole and streamed agree, invalid arguments pass as they are, ids are new each time."""
    engine = start(kind)
    calls = (ToolSay("add", '{"a": {"b": 1}}'), ToolSay("sub", "{bad"))
    engine.always(Say("sure", calls=calls))
    reply = chat(engine, tools=[ADD], max_tokens=400, **WANTS_IDS[kind])
    events = stream(engine, tools=[ADD], max_tokens=400, **WANTS_IDS[kind])
    whole = reply["choices"][0]["message"]["tool_calls"]
    deltas = [d for c in choices(events) for d in c["delta"].get("tool_calls") or ()]
    opened = [d for d in deltas if d.get("id")]

    assert [(c["function"]["name"], c["function"]["arguments"]) for c in whole] == [
        (c.name, c.arguments) for c in calls
    ]
    assert [d["function"]["name"] for d in opened] == ["add", "sub"]
    for index, call in enumerate(calls):
        pieces = [d["function"].get("arguments") or "" for d in deltas if d["index"] == index]
        assert "".join(pieces) == call.arguments
        assert len(pieces) > 2
    prefix = "chatcmpl-tool-" if kind == "vllm" else "call_"
    assert all(c["id"].startswith(prefix) for c in (*whole, *opened))
    assert len({c["id"] for c in (*whole, *opened)}) == 4
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert [c["finish_reason"] for c in choices(events) if c["finish_reason"]] == ["tool_calls"]
    assert output_ids(reply).count(CALL_START) == output_ids(reply).count(CALL_END) == 2


def test_tool_call_deltas_have_each_engines_shape(vllm: FakeEngine, sglang: FakeEngine) -> None:
    """vLLM leaves out what is unset, SGLang spells the nulls out."""
    seen = []
    for engine in (vllm, sglang):
        engine.script(Say(calls=(ToolSay("add", '{"a": 1}'),)))
        held = choices(stream(engine, tools=[ADD], max_tokens=200))
        seen.append([c["delta"] for c in held if c["delta"].get("tool_calls")])
    (first, second, *_), (sg_first, sg_second, *_) = seen

    assert set(first["tool_calls"][0]) == {"id", "type", "index", "function"}
    assert first["tool_calls"][0]["function"] == {"name": "add"}
    assert second == {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
    assert set(sg_first) == {"role", "content", "reasoning_content", "tool_calls"}
    assert sg_first["tool_calls"][0]["function"] == {"name": "add", "arguments": ""}
    assert sg_second["tool_calls"] == [
        {"id": None, "index": 0, "type": "function", "function": {"name": None, "arguments": "{"}}
    ]


def test_half_a_call_stays_in_vllms_content_and_vanishes_on_sglang(vllm: FakeEngine, sglang: FakeEngine) -> None:
    """When the budget ends inside of it."""
    messages = []
    for engine in (vllm, sglang):
        engine.script(Say("so", calls=(ToolSay("add", '{"a": 123456789}'),)))
        messages.append(chat(engine, tools=[ADD], max_tokens=45)["choices"][0]["message"])

    assert "tool_calls" not in messages[0]
    assert messages[0]["content"].startswith('so<tool_call>\n{"name": "add"')
    assert messages[1] == {"role": "assistant", "content": "so", "reasoning_content": None}


def test_without_parsers_the_markup_is_text(start: Callable[..., FakeEngine]) -> None:
    """As on a server started without them."""
    engine = start("vllm", parsers=False)
    engine.script(Say("hi", calls=(ToolSay("add"),)))
    message = chat(engine, tools=[ADD], max_tokens=200)["choices"][0]["message"]

    assert message["content"] == 'hi<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


# --- faults ---


@AS_STREAM
@KINDS
def test_error_statuses(kind: str, start: Callable[..., FakeEngine], *, as_stream: bool) -> None:
    """Its own shape, a given body, a page, a refusal with a time to come back."""
    engine = start(kind)
    engine.script(Fault.status(500), Fault.status(503, body={"a": 1}), Fault.html(502), Fault.refuse(429))
    own, given, page, refusal = [post(engine, stream=as_stream) for _ in range(4)]

    assert own.status_code == 500
    assert "error" in own.json() if kind == "vllm" else own.json()["object"] == "error"
    assert (given.status_code, given.json()) == (503, {"a": 1})
    assert (page.status_code, page.headers["content-type"]) == (502, "text/html; charset=utf-8")
    assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")


@KINDS
def test_half_of_the_json(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Complete as HTTP, incomplete as JSON."""
    engine = start(kind)
    engine.always(Fault.half_json())
    whole, streamed = post(engine), post(engine, stream=True)

    with pytest.raises(json.JSONDecodeError):
        whole.json()
    with pytest.raises(json.JSONDecodeError):
        events_of(streamed.text)
    assert "[DONE]" not in streamed.text


@KINDS
def test_a_cut_breaks_the_connection(kind: str, start: Callable[..., FakeEngine]) -> None:
    """After so many events, or in the middle of a whole reply."""
    engine = start(kind)
    engine.script(Fault.cut(), Fault.cut(after_events=3))
    with pytest.raises(httpx.RemoteProtocolError):
        post(engine)
    pieces: list[str] = []
    response = CLIENT.send(
        CLIENT.build_request("POST", f"{engine.url}/v1/chat/completions", json={"messages": HELLO, "stream": True}),
        stream=True,
    )
    with pytest.raises(httpx.RemoteProtocolError):
        pieces.extend(response.iter_text())
    response.close()

    assert len(events_of("".join(pieces))) == 3
    until(lambda: engine.running == 0)
    assert chat(engine)


@KINDS
def test_stalls(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Silence before the headers, in a stream, and in a whole reply."""
    engine = start(kind)
    engine.script(Fault.stall_before_headers(0.2), Fault.stall(2, 0.2), Fault.stall(0, 0.2))
    for as_stream in (False, True, False):
        began = time.monotonic()
        assert post(engine, stream=as_stream).status_code == 200
        assert time.monotonic() - began >= 0.2


@KINDS
def test_replies_with_something_missing(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Ids, usage, logprobs or the finish, one at a time, whole and streamed."""
    engine = start(kind)
    wanted = {"seed": 7, "logprobs": True, "stream_options": {"include_usage": True}, **WANTS_IDS[kind]}
    good = chat(engine, **wanted)
    count = good["usage"]["completion_tokens"]

    def both(fault: Fault) -> tuple[Json, list[Json]]:
        engine.script(fault, fault)
        return chat(engine, **wanted), stream(engine, **wanted)

    whole, events = both(Fault.no_ids())
    assert not {"sglext", "prompt_token_ids"} & {key for reply in (whole, *events) for key in reply}
    assert not any("token_ids" in c for c in (*whole["choices"], *choices(events)))
    whole, events = both(Fault.wrong_count())
    assert len(output_ids(whole)) == len(streamed_ids(events)) == count - 1
    assert len(told_logprobs(whole["choices"])) == len(told_logprobs(choices(events))) == count
    whole, events = both(Fault.no_usage())
    assert not any(reply.get("usage") for reply in (whole, *events))
    whole, events = both(Fault.no_logprobs())
    assert not any(c["logprobs"] for c in (*whole["choices"], *choices(events)))
    whole, events = both(Fault.null_logprob())
    assert told_logprobs(whole["choices"])[:1] == told_logprobs(choices(events))[:1] == [None]
    whole, events = both(Fault.no_finish())
    assert not any(c["finish_reason"] for c in (*whole["choices"], *choices(events)))


@KINDS
def test_an_abort_is_a_partial_answer(kind: str, start: Callable[..., FakeEngine]) -> None:
    """With the ids and logprobs there were, whole and streamed."""
    engine = start(kind)
    wanted = {"seed": 7, "logprobs": True, **WANTS_IDS[kind]}
    good = output_ids(chat(engine, **wanted))
    engine.script(Fault.abort(after_tokens=4), Fault.abort(after_tokens=4))
    whole, events = chat(engine, **wanted), stream(engine, **wanted)

    assert output_ids(whole) == streamed_ids(events) == good[:4]
    assert len(told_logprobs(whole["choices"])) == len(told_logprobs(choices(events))) == 4
    assert whole["choices"][0]["finish_reason"] == "abort"
    assert [c["finish_reason"] for c in choices(events) if c["finish_reason"]] == ["abort"]


@KINDS
def test_an_error_in_mid_stream_is_an_event(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Followed by the mark; a whole reply is a 500."""
    engine = start(kind)
    engine.script(Fault.error_frame(after_events=2), Fault.error_frame())
    events = events_of(post(engine, stream=True).text)

    assert len(events) == 4
    assert events[2]["error"]["code"] == 500
    assert events[3] == "[DONE]"
    assert post(engine).status_code == 500


@KINDS
def test_a_fault_can_happen_to_given_words(kind: str, start: Callable[..., FakeEngine]) -> None:
    """Slowly said, here."""
    engine = start(kind)
    engine.script(Fault.slow(0.02, say=Say("abcdef", finish="length")))
    began = time.monotonic()

    assert chat(engine)["choices"][0]["message"]["content"] == "abcdef"
    assert time.monotonic() - began >= 0.12


# --- running calls ---


@AS_STREAM
@KINDS
def test_a_client_that_leaves_frees_the_engine(kind: str, start: Callable[..., FakeEngine], *, as_stream: bool) -> None:
    """At once, not at the end of its reply."""
    engine = start(kind, token_delay_s=600)
    target, body = urlsplit(engine.url), json.dumps({"model": "tiny", "messages": HELLO, "stream": as_stream})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    head += "content-type: application/json\r\n\r\n"
    with socket.create_connection((target.hostname, target.port or 80)) as line:
        line.sendall(head.encode() + body.encode())
        until(lambda: engine.running == 1)

    until(lambda: engine.running == 0)
    assert engine.aborted == 1
    if kind == "vllm":
        assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in CLIENT.get(f"{engine.url}/metrics").text


def test_sglang_holds_and_relabels_a_running_call(start: Callable[..., FakeEngine]) -> None:
    """Paused in place, new weights, continued: one reply from two versions."""
    engine = start("sglang", token_delay_s=0.05)
    replies: list[Json] = []
    asked = {"seed": 7, "max_tokens": 2000, "ignore_eos": True}
    caller = threading.Thread(target=lambda: replies.append(chat(engine, **asked)))
    caller.start()
    until(lambda: any(exchange._told for exchange in engine._engine._calls))
    CLIENT.post(f"{engine.url}/pause_generation", json={"mode": "in_place"})
    CLIENT.post(f"{engine.url}/update_weight_version", json={"new_version": "w2"})
    # From here on all the rest takes no time, unless it is held.
    engine._engine.setup = replace(engine._engine.setup, token_delay_s=0)
    time.sleep(0.2)
    assert engine.running == 1
    CLIENT.post(f"{engine.url}/continue_generation", json={})
    caller.join()
    spans = replies[0]["metadata"]["weight_versions"]

    assert [span["version"] for span in spans] == ["default", "w2"]
    assert (spans[0]["start"], spans[1]["end"]) == (0, 2000)
    assert 0 < spans[0]["end"] == spans[1]["start"] < 2000


@KINDS
def test_a_running_stream_can_be_aborted_over_http(kind: str, start: Callable[..., FakeEngine]) -> None:
    """It ends at once, with finish reason `abort` and as many ids as were told."""
    engine = start(kind, dev_mode=True)
    engine.script(Fault.stall(5, 600))
    body = {"model": "tiny", "messages": HELLO, "stream": True, "max_tokens": 40, **WANTS_IDS[kind]}
    with CLIENT.stream("POST", f"{engine.url}/v1/chat/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        told = list(islice(lines, 5))
        call_id = events_of(told[0])[0]["id"]
        path, asked = ("abort_request", {"rid": call_id})
        if kind == "vllm":
            path, asked = ("abort_requests", {"request_ids": [call_id]})
        CLIENT.post(f"{engine.url}/{path}", json=asked)
        told.extend(lines)
    *events, done = events_of("\n".join(told))

    assert done == "[DONE]"
    assert [c["finish_reason"] for c in choices(events) if c["finish_reason"]] == ["abort"]
    assert 3 < len(streamed_ids(events)) <= 5


@KINDS
def test_a_stopped_engine_refuses_connections_and_comes_back(kind: str, start: Callable[..., FakeEngine]) -> None:
    """On the same port; calls in flight break."""
    engine = start(kind)
    engine.script(Fault.stall(after_events=2, seconds=60))
    url, body = engine.url, {"model": "tiny", "messages": HELLO, "stream": True}
    with CLIENT.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        pieces = response.iter_text()
        next(pieces)
        engine.stop()
        with pytest.raises(httpx.TransportError):
            list(pieces)
    assert not engine.is_alive
    with pytest.raises(httpx.ConnectError):
        CLIENT.get(f"{url}/health")
    engine.restart()

    assert engine.url == url
    assert chat(engine)


@KINDS
def test_a_silence_ends_when_it_is_told_to(kind: str, start: Callable[..., FakeEngine]) -> None:
    """However long it was to be: what is done within it is done in time on any machine."""
    engine = start(kind)
    engine.script(Fault.stall(2, 600))
    body = {"model": "tiny", "messages": HELLO, "stream": True}
    with CLIENT.stream("POST", f"{engine.url}/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert engine.running == 1
        engine.go_on()
        assert list(lines)[-2] == "data: [DONE]"


def test_an_engine_as_a_process_is_scripted_over_http() -> None:
    """It prints where it listens, takes a script, tells what it got, and dies of what kills it."""
    command = [sys.executable, "-m", "tests.fakes", "--kind", "sglang", "--port", "0", "--no-deterministic"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("ready ").strip()
            script = [{"say": {"text": "hi", "calls": [{"name": "add"}]}}, {"fault": "status", "code": 503}]
            assert CLIENT.post(f"{url}/_sim/script", json=script).json() == {"scripted": 2}
            assert CLIENT.post(f"{url}/_sim/script", json={"fault": "no such"}).status_code == 400
            body = {"model": "tiny", "messages": HELLO}
            answers = [CLIENT.post(f"{url}/v1/chat/completions", json=body) for _ in range(2)]

            assert answers[0].json()["choices"][0]["message"]["content"].startswith("hi")
            assert answers[1].status_code == 503
            assert [r["body"] for r in CLIENT.get(f"{url}/_sim/requests").json()] == [body, body]
            assert CLIENT.get(f"{url}/_sim/state").json() == {
                "running": 0,
                "halted": 0,
                "aborted": 0,
                "served": 2,
            }
            with pytest.raises(httpx.TransportError):
                CLIENT.post(f"{url}/v1/chat/completions", json={**body, "input_ids": [300]})
            assert process.wait(PATIENCE_S) == 1
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
