"""One call on real sockets: what the engine is asked, what is recorded, and what the client gets to see."""

import json
from typing import Any

import httpx
import pytest

from tests.api.conftest import Start
from tests.api.harness import ADD, NEUTRAL, Json, Reader, asked, deliveries, finish_of, message_of
from tests.fakes import FakeEngine, Say, ToolSay
from tests.fakes.tokens import TURN_END, decode
from tests.request.forbidden import FORBIDDEN
from tests.served import RolloutClient, ServedProxy

AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TAMPERED = {
    "temperature": 0.2,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
}
CAPTURE_OFF: list[Json] = [
    {"top_logprobs": None},
    {"logprobs": None},
    {"logprobs": False, "top_logprobs": 0},
    {"include_reasoning": False},
    {"return_token_ids": False},
    {"return_tokens_as_token_ids": True},
    {"separate_reasoning": False, "stream_reasoning": False},
    {"stream_options": {"include_usage": False}},
    {"stream_options": None},
]
TWO_CALLS = Say("so", reasoning="hm", calls=(ToolSay("add", '{"a": 1, "b": "é"}'), ToolSay("add", '{"a": 2}')))
LONG = {"max_tokens": 200}
JSON = {"content-type": "application/json"}
HALF_A_CHARACTER = b'{"messages": [{"role": "user", "content": "\\ud800"}], "model": "\\udfff"}'


def send(client: RolloutClient, *, stream: bool, text: str = "hello", **fields: Any) -> Json:
    """One call; the message that its client gets."""
    if stream:
        return message_of(client.stream(text, **fields))
    response = client.chat(text, **fields)
    assert response.status_code == 200, response.text
    message: Json = response.json()["choices"][0]["message"]
    return message


def drawn_again(engine: FakeEngine, call: Json) -> list[int]:
    """What the engine draws for a record's seed when it is asked directly."""
    body = asked(seed=call["seed"]["value"], **NEUTRAL, return_token_ids=True) | {"model": "tiny"}
    choice = httpx.post(f"{engine.url}/v1/chat/completions", json=body).json()["choices"][0]
    ids: list[int] = choice.get("token_ids") or choice["response_token_ids"]
    return ids


# --- what is recorded ---


@AS_STREAM
def test_the_recorded_seed_draws_the_recorded_ids(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """The record is what the engine sampled, to the id, in both forms."""
    send(rollout, stream=stream)
    call = rollout.call()

    assert call["completion_token_ids"] == drawn_again(engine, call)
    assert len(call["logprobs"]) == len(call["completion_token_ids"])
    assert decode(call["prompt_token_ids"]).endswith("hello<|im_end|>\n<|im_start|>assistant\n")
    assert (call["state"], call["capture"]) == ("done", {"complete": True, "gaps": []})


def test_a_stream_draws_what_a_whole_reply_draws(proxy: ServedProxy, engine: FakeEngine) -> None:
    """A rerun under another label has the same seeds; the form of the reply does not matter."""
    group = f"forms-{proxy.url}"
    whole, streamed = proxy.rollout(run="whole", group=group), proxy.rollout(run="streamed", group=group)
    send(whole, stream=False)
    send(streamed, stream=True)
    one, other = whole.call(), streamed.call()

    assert one["seed"] == other["seed"]
    for name in ("prompt_token_ids", "completion_token_ids", "logprobs", "finish_reason", "context"):
        assert one[name] == other[name], name


def test_samples_of_a_group_draw_differently(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Identical samples would train nothing."""
    group = f"samples-{proxy.url}"
    clients = [proxy.rollout(group=group, sample=sample) for sample in range(4)]
    drawn = {tuple(client.call()["completion_token_ids"]) for client in clients if client.chat().status_code == 200}

    assert len(drawn) == 4


def test_a_deliberate_repeat_is_a_new_draw(rollout: RolloutClient) -> None:
    """The same question twice gets the next occurrence and another seed."""
    rollout.chat()
    rollout.chat()
    first, second = rollout.calls()

    assert (first["context"], first["seed"]["occurrence"]) == (second["context"], second["seed"]["occurrence"] - 1)
    assert first["seed"]["value"] != second["seed"]["value"]


@pytest.mark.parametrize(("sample", "seed"), [(0, 759924877), (1, 212408380), (2, 2032952419), (3, 829548490)])
def test_the_worked_example_draws_with_its_golden_seeds(start: Start, sample: int, seed: int) -> None:
    """Computed apart from the proxy, from the conversation to the seed (docs: run seed 7, group gsm8k-17)."""
    proxy, engine = start(run_seed=7)
    client = proxy.rollout(group="gsm8k-17", sample=sample)
    client.chat("What is 2+2?")

    assert engine.requests[-1].body["seed"] == seed
    assert client.call()["context"] == "sha256:259297024e74cb9218ac20f0fd34d4511d9e8d7c4201e8adf086257959956d17"


@AS_STREAM
def test_the_delivery_is_noted(rollout: RolloutClient, *, stream: bool) -> None:
    """Who read the reply, and that it arrived."""
    send(rollout, stream=stream)

    assert deliveries(rollout) == ["delivered"]
    assert rollout.call()["deliveries"][0]["events"] >= 1


# --- what the engine is asked ---


@AS_STREAM
def test_the_pinned_set_arrives_complete(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """Every field on every path."""
    send(rollout, stream=stream)
    body = engine.requests[-1].body

    assert {name: body[name] for name in NEUTRAL} == NEUTRAL
    assert body["logprobs"] is True
    assert type(body["top_logprobs"]) is int
    assert (body["n"], body["model"], type(body["seed"])) == (1, "tiny", int)
    if "include_reasoning" in body:
        assert (body["include_reasoning"], body["return_token_ids"]) == (True, True)
    else:
        assert body["return_output_ids_in_sglext" if stream else "return_token_ids"] is True


@AS_STREAM
def test_what_the_client_asks_of_the_sampler_is_overridden_and_recorded(
    rollout: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """Asked and effective are two facts."""
    send(rollout, stream=stream, **TAMPERED, seed=99)
    sampling, body = rollout.call()["sampling"], engine.requests[-1].body

    assert {name: body[name] for name in NEUTRAL} == NEUTRAL
    assert body["seed"] != 99
    assert sampling["asked"] == TAMPERED | {"seed": 99}
    assert (sampling["effective"], sorted(sampling["overridden"])) == (NEUTRAL, sorted(TAMPERED))


@AS_STREAM
@pytest.mark.parametrize("fields", CAPTURE_OFF, ids=str)
def test_a_client_cannot_switch_capture_off(rollout: RolloutClient, fields: Json, *, stream: bool) -> None:
    """Nulls and falses of a client never cost the record its ids."""
    send(rollout, stream=stream, **fields)

    assert rollout.call()["capture"]["complete"]


@AS_STREAM
def test_forbidden_fields_never_reach_an_engine(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """All at once; the call is served and says what it ignored. Two of the names carry the proxy's own values."""
    send(rollout, stream=stream)
    own_salt = engine.requests[-1].body["cache_salt"]
    send(rollout, stream=stream, **FORBIDDEN)
    body, call = engine.requests[-1].body, rollout.calls()[-1]

    assert set(body) & set(FORBIDDEN) <= {"rid", "cache_salt"}
    assert str(body.get("rid", call["call_id"])).endswith(call["call_id"])
    assert body["cache_salt"] == own_salt != FORBIDDEN["cache_salt"]
    assert set(call["sampling"]["ignored"]) == set(FORBIDDEN)
    assert call["capture"]["complete"]


def test_a_template_argument_cannot_replace_the_template(rollout: RolloutClient, engine: FakeEngine) -> None:
    """What is the renderer's does not hide among the template's own arguments."""
    arguments = {"enable_thinking": False, "chat_template": "{{ 'mine' }}", "tokenize": False, "tools": []}
    send(rollout, stream=False, chat_template_kwargs=arguments)
    call = rollout.call()

    assert engine.requests[-1].body["chat_template_kwargs"] == {"enable_thinking": False}
    assert call["sampling"]["ignored"] == [
        f"chat_template_kwargs.{name}" for name in ("chat_template", "tokenize", "tools")
    ]


def test_a_big_body_is_read_like_any_other(rollout: RolloutClient, engine: FakeEngine) -> None:
    """In a thread of its own, so that other calls do not wait."""
    refused = rollout.post({"messages": [{"role": "user", "content": "x" * 600_000}], "n": "many"})
    long = rollout.post({"messages": [{"role": "user", "content": "x"}] * 20_000, "max_tokens": 2})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    assert long.json()["error"]["code"] == "context_length_exceeded"


def test_no_client_header_reaches_an_engine(rollout: RolloutClient, engine: FakeEngine) -> None:
    """The rollout's key and the harness's headers stay here."""
    headers = {"x-sglext-return-input-ids": "1", "x-request-id": "mine", "x-data-parallel-rank": "0", "cookie": "a=b"}
    rollout.http.post("/chat/completions", json=asked(), headers=headers)
    received = engine.requests[-1].headers

    assert not {"x-sglext-return-input-ids", "x-data-parallel-rank", "cookie", "authorization"} & set(received)
    assert received["x-request-id"] == rollout.call()["call_id"]


def test_a_limit_beyond_the_context_is_clamped(rollout: RolloutClient, engine: FakeEngine) -> None:
    """The engine would refuse it; the record keeps what was asked."""
    rollout.chat(max_tokens=100_000)
    call = rollout.call()

    assert engine.requests[-1].body["max_tokens"] == 4096 - len(call["prompt_token_ids"])
    assert call["sampling"]["asked"] == {"max_tokens": 100_000}


def test_a_limit_ends_a_reply(rollout: RolloutClient) -> None:
    """And the reason is told."""
    reply = rollout.chat(max_completion_tokens=2).json()

    assert reply["choices"][0]["finish_reason"] == "length"
    assert len(rollout.call()["completion_token_ids"]) == 2


def test_a_constrained_call_is_marked(rollout: RolloutClient, engine: FakeEngine) -> None:
    """Its tokens are no plain samples of the policy."""
    rollout.chat(response_format={"type": "json_object"}, min_tokens=0)

    assert rollout.call()["sampling"]["constrained"] == ["response_format"]
    assert engine.requests[-1].body["response_format"] == {"type": "json_object"}


def test_a_volatile_line_is_settled_for_the_engine_and_recorded(rollout: RolloutClient, engine: FakeEngine) -> None:
    """What changes on each request changes neither prompt nor seed."""
    line = "x-anthropic-billing-header: cch=12ab"
    rollout.post(asked() | {"messages": [{"role": "system", "content": line}, {"role": "user", "content": "hi"}]})

    assert engine.requests[-1].body["messages"][0]["content"] == "x-anthropic-billing-header: fixed"
    assert [found["original"] for found in rollout.call()["volatile"]] == [line]


# --- what the client sees ---


def test_a_whole_reply_is_what_openai_defines(rollout: RolloutClient) -> None:
    """No ids, no logprobs, no fields of the engine's own."""
    response = rollout.chat()
    reply = response.json()

    assert set(reply) == {"id", "object", "created", "model", "choices", "usage"}
    assert set(reply["choices"][0]) == {"index", "message", "logprobs", "finish_reason"}
    assert reply["choices"][0]["logprobs"] is None
    assert "token_ids" not in response.text
    call = rollout.call()
    assert reply["usage"]["prompt_tokens"] == len(call["prompt_token_ids"])
    assert reply["usage"]["completion_tokens"] == len(call["completion_token_ids"])


def test_a_streamed_reply_is_what_openai_defines(rollout: RolloutClient) -> None:
    """One id for all chunks, a finish reason in the last, no usage, no ids, no logprobs."""
    chunks = rollout.stream()

    assert {frozenset(chunk) for chunk in chunks} == {frozenset({"id", "object", "created", "model", "choices"})}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {name for chunk in chunks for name in chunk["choices"][0]} == {"index", "delta", "finish_reason"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"


def test_usage_comes_with_a_stream_only_where_it_was_asked_for(rollout: RolloutClient) -> None:
    """In a chunk of its own, the last."""
    chunks = rollout.stream(stream_options={"include_usage": True})
    usages = [chunk for chunk in chunks if "usage" in chunk]

    assert usages == chunks[-1:]
    assert (usages[0]["choices"], usages[0]["usage"]["completion_tokens"]) == ([], len(rollout.call()["logprobs"]))


def test_logprobs_are_shown_where_they_were_asked_for(rollout: RolloutClient) -> None:
    """As many alternatives as the client wants, and the recorded values."""
    reply = rollout.chat(logprobs=True, top_logprobs=3).json()
    shown = reply["choices"][0]["logprobs"]["content"]

    assert [token["logprob"] for token in shown] == rollout.call()["logprobs"]
    assert {len(token["top_logprobs"]) for token in shown} == {3}


def test_logprobs_are_streamed_where_they_were_asked_for(rollout: RolloutClient) -> None:
    """Also those of tokens without text."""
    chunks = rollout.stream(logprobs=True, top_logprobs=3)
    lists = [chunk["choices"][0]["logprobs"]["content"] for chunk in chunks if "logprobs" in chunk["choices"][0]]
    shown = [token for tokens in lists for token in tokens]

    assert [token["logprob"] for token in shown] == rollout.call()["logprobs"]
    assert {len(token["top_logprobs"]) for token in shown} == {3}


@pytest.mark.parametrize(("model", "shown"), [("gpt-9", "gpt-9"), ("a:b/c", "a:b/c"), (None, "tiny")])
def test_the_model_is_the_one_that_was_asked(rollout: RolloutClient, model: str | None, shown: str) -> None:
    """Harnesses check it; the record keeps it."""
    assert rollout.post(asked() | {"model": model}).json()["model"] == shown
    assert {chunk["model"] for chunk in rollout.stream(model=model)} == {shown}
    assert {call["requested_model"] for call in rollout.calls()} == {model}


@AS_STREAM
def test_response_headers_are_built_anew(rollout: RolloutClient, *, stream: bool) -> None:
    """Nothing of the engine's server is passed on, and call and request are named."""
    with rollout.http.stream("POST", "/chat/completions", json=asked(stream=stream)) as response:
        response.read()
    own = {"transfer-encoding", "cache-control"} if stream else {"content-length"}

    named = {"x-rollpin-call-id": rollout.call()["call_id"], "x-request-id": rollout.call()["request_id"]}
    assert set(response.headers) == {"date", "content-type"} | set(named) | own
    assert {name: response.headers[name] for name in named} == named


@AS_STREAM
def test_reasoning_and_tool_calls_come_through(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """Names, arguments and order, whole and in pieces."""
    engine.script(TWO_CALLS)
    message = send(rollout, stream=stream, tools=[ADD], **LONG)
    call = rollout.call()

    assert (message["content"], message["reasoning_content"]) == ("so", "hm")
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "add", "arguments": '{"a": 1, "b": "é"}'},
        {"name": "add", "arguments": '{"a": 2}'},
    ]
    assert message == call["message"]
    assert call["finish_reason"] == "tool_calls"
    assert call["capture"]["complete"]


def test_a_message_put_together_from_chunks_is_the_whole_one(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Down to the derived ids: a rerun in the other form says the same."""
    engine.script(TWO_CALLS, TWO_CALLS)
    group = f"calls-{proxy.url}"
    whole, streamed = proxy.rollout(run="whole", group=group), proxy.rollout(run="streamed", group=group)

    assert send(whole, stream=False, tools=[ADD], **LONG) == send(streamed, stream=True, tools=[ADD], **LONG)


@AS_STREAM
def test_tool_call_ids_are_derived(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """The client never sees the engine's; the record holds both."""
    engine.script(TWO_CALLS)
    shown = [call["id"] for call in send(rollout, stream=stream, tools=[ADD], **LONG)["tool_calls"]]
    engines = [call["id"] for call in rollout.call()["engine_message"]["tool_calls"]]

    assert len({*shown, *engines}) == 4
    assert all(name.startswith("call_") and len(name) == 29 for name in shown)


@AS_STREAM
def test_half_characters_and_markup_make_no_chunk(rollout: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """Tokens without text are recorded, and the client sees nothing of them."""
    engine.script(Say("é"))
    message = send(rollout, stream=stream)
    ids = rollout.call()["completion_token_ids"]

    assert message["content"] == "é"
    assert ids[-3:] == [0xC3, 0xA9, TURN_END]


def test_every_chunk_tells_something(rollout: RolloutClient, engine: FakeEngine) -> None:
    """A delta of ids alone becomes no event."""
    engine.script(Say("é"))
    chunks = rollout.stream()

    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "é"},
        {},
    ]
    assert finish_of(chunks[-1:]) == "stop"


def test_a_reply_cut_within_a_character_is_recorded_whole(rollout: RolloutClient, engine: FakeEngine) -> None:
    """The ids are right even where the text cannot be."""
    engine.script(Say("abé"))
    rollout.stream(max_tokens=5)
    call = rollout.call()

    assert (call["finish_reason"], call["capture"]["complete"]) == ("length", True)
    assert call["completion_token_ids"][-1] == 0xC3


def test_a_lone_surrogate_is_recorded(rollout: RolloutClient, engine: FakeEngine) -> None:
    """Half a character in a question gets an answer and an account, whatever the engine makes of it."""
    response = rollout.http.post("/chat/completions", content=HALF_A_CHARACTER, headers=JSON)
    store = rollout.proxy.wiring.store
    (call,) = rollout.proxy.do(store.calls(rollout.rollout_id, None, 10)).items

    assert response.status_code in {200, 502}
    assert call["request"]["messages"] == [{"role": "user", "content": "\ud800"}]


def test_a_record_with_a_lone_surrogate_can_be_read(start: Start) -> None:
    """One odd question must not hide all of a rollout's calls from its trainer."""
    client = start()[0].rollout()
    client.http.post("/chat/completions", content=HALF_A_CHARACTER, headers=JSON)

    assert client.call()["requested_model"] == "\udfff"


@pytest.mark.parametrize("depth", [90, 100, 300, 900, 990])
@pytest.mark.parametrize("place", ["messages", "tools", "dropped", "arguments", "template"])
def test_deep_nesting_never_breaks_a_turn(rollout: RolloutClient, depth: int, place: str) -> None:
    """It is served and recorded, or refused; never half of it."""
    call = {"id": "a", "function": {"name": "f", "arguments": "DEEP"}}
    bodies = {
        "messages": {"messages": [{"role": "user", "content": [{"type": "x", "x": "DEEP"}]}]},
        "tools": asked(tools=[{"function": {"name": "f", "x": "DEEP"}}]),
        "dropped": asked(dropped="DEEP"),
        "arguments": {"messages": [{"role": "assistant", "tool_calls": [call]}]},
        "template": asked(chat_template_kwargs={"a": "DEEP"}),
    }
    deep = "[" * depth + "]" * depth
    body = json.dumps(bodies[place]).replace("DEEP" if place == "arguments" else '"DEEP"', deep)
    answer = rollout.http.post("/chat/completions", content=body, headers=JSON)

    assert answer.status_code in {200, 400}, answer.text
    if answer.status_code == 200:
        assert rollout.call()["state"] == "done"


# --- settings that change the view ---


@AS_STREAM
def test_reasoning_goes_under_the_configured_name(start: Start, *, stream: bool) -> None:
    """Harnesses look in different places."""
    proxy, engine = start(reasoning_field="thoughts")
    engine.script(Say("so", reasoning="hm"))

    assert send(proxy.rollout(), stream=stream) == {"role": "assistant", "content": "so", "thoughts": "hm"}


def test_unknown_fields_are_refused_where_that_is_set(start: Start) -> None:
    """`unknown_fields = refuse`: the engine is not asked."""
    proxy, engine = start(unknown_fields="refuse")
    client = proxy.rollout()
    answers = [client.chat(**{name: value}) for name, value in FORBIDDEN.items()]

    assert {answer.status_code for answer in answers} == {400}
    assert [answer.json()["error"]["param"] for answer in answers] == list(FORBIDDEN)
    assert engine.requests == []


def test_a_strict_pin_tells_field_asked_and_allowed(start: Start) -> None:
    """`pin_mode = strict`: the engine is not asked, and an agreeing value passes."""
    proxy, engine = start(pin_mode="strict")
    client = proxy.rollout()
    error = client.chat(top_p=0.5).json()["error"]

    assert (error["code"], error["param"]) == ("pin_violated", "top_p")
    assert "0.5" in error["message"]
    assert "1.0" in error["message"]
    assert engine.requests == []
    assert client.chat(top_p=1).status_code == 200


def test_a_rollouts_own_values_are_pinned(start: Start) -> None:
    """`sampling` of one rollout beats its profile, and the record says so."""
    proxy, engine = start(profiles={"train": {"temperature": 0.7}})
    client = proxy.rollout(sampling={"top_k": 5, "max_tokens_cap": 3})
    client.chat(temperature=1.0)
    body = engine.requests[-1].body

    assert (body["temperature"], body["top_k"], body["max_tokens"]) == (0.7, 5, 3)
    assert client.call()["sampling"]["overridden"] == ["temperature"]


def test_client_seeds_may_be_honoured(start: Start) -> None:
    """A sample of the group that sends the same one again is refused: it would draw the same."""
    proxy, engine = start(client_seed="honour")
    first, second = proxy.rollout(group="g", sample=0), proxy.rollout(group="g", sample=1)
    first.chat(seed=42)
    refused = second.chat(seed=42)

    assert engine.requests[-1].body["seed"] == 1021820133
    assert first.call()["seed"]["source"] == "client"
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "group_seed_collision")
    assert len(engine.requests) == 1


def test_many_readers_at_once_get_their_own_replies(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Side by side, nothing is mixed up."""
    clients = [proxy.rollout() for _ in range(12)]
    readers = [Reader(client, f"question {place}") for place, client in enumerate(clients)]
    texts = [reader.ended().text for reader in readers]

    assert texts == [client.call()["message"]["content"] or "" for client in clients]
    assert all(reader.is_done for reader in readers)
