"""Retry or deliberate repeat, on real sockets: what a client gets that asks the same thing again, and why."""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from proxy.request.identify import LANE_HEADERS
from proxy.verify.story import Looking, verify_store
from tests.api.harness import (
    ADD,
    FOREVER,
    PATIENCE_S,
    Gate,
    Json,
    Leaver,
    Reader,
    asked,
    error_of,
    finish_of,
    message_of,
    until,
)
from tests.fakes import FakeEngine, Fault, Say, ToolSay
from tests.served import RolloutClient, ServedProxy, served, settings_for
from tests.test_crash import new_rollout, proxy_process, read_calls

AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
FIRST = pytest.mark.parametrize("first_stream", [False, True], ids=["first whole", "first streamed"])
WORDS = Say("one two three four five")
RICH = Say("so", reasoning="hm", calls=(ToolSay("add", '{"a": 1, "b": "é"}'), ToolSay("add", '{"a": 2}')))
RICH_FIELDS: Json = {"tools": [ADD], "max_tokens": 200, "logprobs": True, "top_logprobs": 2}
# Events by which both engines have said some of the words, and not all.
STALL_AFTER = 8
RETRY = {"x-stainless-retry-count": "1"}
# When the lease of every call of today has lapsed.
LONG_AFTER = 4e9


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServedProxy, FakeEngine]]:
    """An engine of each kind, and a proxy that asks on for no aborted reply and waits for whoever has left."""
    folder, patient = tmp_path_factory.mktemp("proxy"), {"orphan_grace_s": FOREVER}
    with (
        FakeEngine(request.param) as engine,
        served(settings_for(folder, engine.url, resume_attempts=0, timeouts=patient)) as proxy,
    ):
        yield proxy, engine


@pytest.fixture
def engine(shared: tuple[ServedProxy, FakeEngine]) -> Iterator[FakeEngine]:
    """The engine, with an empty script and nothing asked yet."""
    engine = shared[1]
    engine.requests.clear()
    yield engine
    engine.always(None)
    engine._engine._queue.clear()


@pytest.fixture
def client(shared: tuple[ServedProxy, FakeEngine], engine: FakeEngine) -> Iterator[RolloutClient]:
    """A new rollout."""
    proxy = shared[0]
    store = proxy.wiring.store
    made = proxy.rollout()
    yield made
    made.http.close()
    proxy.wiring.store = store


def send(client: RolloutClient, *, stream: bool = False, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    """One call; the response, read to its end."""
    return client.http.post("/chat/completions", json=asked(stream=stream, **fields), headers=headers)


def at_once(number: int, ask: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> list[Any]:
    """What so many clients are told who ask side by side, while something happens."""
    with ThreadPoolExecutor(number) as clients:
        asking = [clients.submit(ask) for _ in range(number)]
        meanwhile()
        return [one.result() for one in asking]


def call_id(response: Any) -> str:
    return str(response.headers["x-rollpin-call-id"])


def readings(client: RolloutClient) -> list[tuple[str | None, str | None]]:
    """By what right each reading of the only call began, and how it ended."""
    return [(one["claim"], one["outcome"]) for one in client.call()["deliveries"]]


def leave_early(client: RolloutClient, engine: FakeEngine, *, stream: bool, **fields: Any) -> None:
    """Ask, and leave once the engine is at it; return when the proxy has noticed."""
    before = len(engine.requests)
    leaver = Leaver(client, stream=stream, **fields)
    until(lambda: len(engine.requests) > before)
    if stream:
        leaver.read_until(b'"content":"o"')
    leaver.leave()
    until(lambda: client.proxy.calls(client.rollout_id)[-1]["deliveries"][-1]["outcome"] == "client_gone")


def until_read(client: RolloutClient, times: int) -> None:
    """Wait until so many have begun to read the reply to the first request."""
    until(lambda: len(client.proxy.calls(client.rollout_id)[0]["deliveries"]) == times)


# --- after a failure ---


@AS_STREAM
@pytest.mark.parametrize("headers", [None, RETRY], ids=["unmarked", "marked"])
@pytest.mark.parametrize("fault", [Fault.status(500), Fault.refuse(429), Fault.cut(3, WORDS)], ids=lambda f: f.kind)
def test_a_retry_after_a_failure_gets_the_same_draw(
    client: RolloutClient, engine: FakeEngine, fault: Fault, headers: Any, *, stream: bool
) -> None:
    """The failure shifts no later seed, and stays on record."""
    engine.script(fault)
    first = send(client, stream=stream)
    again = send(client, stream=stream, headers=headers)
    later = send(client, stream=stream)
    call, next_call = client.calls()

    assert call_id(first) == call_id(again) != call_id(later)
    assert [received.body["seed"] for received in engine.requests] == [
        *[call["seed"]["value"]] * 2,
        next_call["seed"]["value"],
    ]
    assert (call["state"], len(call["earlier_failures"]), next_call["seed"]["occurrence"]) == ("done", 1, 1)
    assert [(one["claim"], one["outcome"]) for one in call["deliveries"]] == [
        (None, "error_told"),
        ("failed", "delivered"),
    ]


def test_the_sdk_retries_into_the_same_draw(client: RolloutClient, engine: FakeEngine) -> None:
    """Three tries, one call, one reply."""
    engine.script(Fault.status(500), Fault.refuse(503), WORDS)
    created = client.created
    with openai.OpenAI(base_url=created["base_url"], api_key=created["api_key"], max_retries=2) as sdk:
        reply = sdk.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hello"}])

    assert reply.choices[0].message.content == WORDS.text
    assert [failure["kind"] for failure in client.call()["earlier_failures"]] == ["engine_error", "engine_busy"]
    assert len({received.body["seed"] for received in engine.requests}) == 1


def test_a_refused_request_may_be_asked_again(client: RolloutClient, engine: FakeEngine) -> None:
    """The same request is refused the same way, in the same row; a mended one is served."""
    engine.script(Fault.status(400), Fault.status(400))
    assert [client.chat(stop="x").status_code for _ in range(2)] == [400, 400]
    assert client.chat().status_code == 200

    refused, served_call = client.calls()
    assert (refused["state"], len(refused["earlier_failures"]), served_call["state"]) == ("failed", 1, "done")


def test_two_that_fail_side_by_side_are_two_draws_again(client: RolloutClient, engine: FakeEngine) -> None:
    """Each loss is made good once, the oldest first."""
    gate = Gate(client.proxy)
    engine.script(Fault.status(500), Fault.status(500))
    readers = [Reader(client) for _ in range(2)]
    until(lambda: gate.waiting == 2)
    gate.open()
    for reader in readers:
        reader.ended()
    answers = [send(client) for _ in range(3)]

    calls = client.calls()
    assert [call_id(answer) for answer in answers] == [call["call_id"] for call in calls]
    assert [len(call["earlier_failures"]) for call in calls] == [1, 1, 0]


# --- after its client left ---


@FIRST
@AS_STREAM
def test_a_client_that_comes_back_joins_the_running_reply(
    client: RolloutClient, engine: FakeEngine, *, first_stream: bool, stream: bool
) -> None:
    """From its first event, in its own form; the engine is asked once."""
    engine.script(Fault.stall(STALL_AFTER, FOREVER, WORDS))
    leave_early(client, engine, stream=first_stream)
    reader = Reader(client, stream=stream)
    until_read(client, times=2)
    engine.go_on()
    if stream:
        message, finish = message_of(reader.ended().chunks), finish_of(reader.chunks)
    else:
        choice = json.loads("".join(reader.ended().lines))["choices"][0]
        message, finish = choice["message"], choice["finish_reason"]

    assert (message, finish, reader.is_done) == ({"role": "assistant", "content": WORDS.text}, "stop", stream)
    assert len(engine.requests) == 1
    assert readings(client) == [(None, "client_gone"), ("client_gone", "delivered")]
    assert client.call()["earlier_failures"] == []


def test_who_joins_a_stream_sees_it_grow(client: RolloutClient, engine: FakeEngine) -> None:
    """What was said before it came, then the rest as it comes."""
    engine.script(Fault.stall(STALL_AFTER, FOREVER, WORDS))
    leave_early(client, engine, stream=True)
    reader = Reader(client)
    until(lambda: reader.text.startswith("one"))

    assert reader.is_alive()
    assert reader.text != WORDS.text
    engine.go_on()
    assert reader.ended().text == WORDS.text


@FIRST
@AS_STREAM
def test_a_client_that_comes_back_after_the_end_gets_the_recorded_reply(
    client: RolloutClient, engine: FakeEngine, *, first_stream: bool, stream: bool
) -> None:
    """Reasoning, tool calls and logprobs are those of the record, in either form."""
    engine.script(RICH)
    gate = Gate(client.proxy)
    leaver = Leaver(client, stream=first_stream, **RICH_FIELDS)
    until(lambda: gate.waiting)
    leaver.leave()
    until(lambda: client.proxy.calls(client.rollout_id)[0]["deliveries"][0]["outcome"] == "client_gone")
    gate.open()
    call = client.call()
    response = send(client, stream=stream, **RICH_FIELDS)
    message, finish, logprobs = shown_by(response, stream=stream)

    assert call["state"] == "done"
    assert message == call["message"]
    assert (message["reasoning_content"], len(message["tool_calls"])) == ("hm", 2)
    assert finish == call["finish_reason"] == "tool_calls"
    assert logprobs == call["logprobs"]
    assert len(engine.requests) == 1
    assert readings(client) == [(None, "client_gone"), ("client_gone", "delivered")]


def shown_by(response: Any, *, stream: bool) -> tuple[Json, str | None, list[float]]:
    """Message, finish reason and logprobs that a client sees."""
    if not stream:
        choice = response.json()["choices"][0]
        return choice["message"], choice["finish_reason"], [one["logprob"] for one in choice["logprobs"]["content"]]
    chunks = events_of(response)
    parts = [choice for chunk in chunks for choice in chunk["choices"]]
    logprobs = [one["logprob"] for part in parts for one in (part.get("logprobs") or {}).get("content") or []]
    return message_of(chunks), finish_of(chunks), logprobs


def events_of(response: Any) -> list[Json]:
    """The chunks of a stream that was read to its end."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("n", [1, 3])
@AS_STREAM
def test_a_recorded_reply_is_told_as_the_first_time(
    client: RolloutClient, engine: FakeEngine, n: int, *, stream: bool
) -> None:
    """Id, time, model, words and usage: a client cannot tell the two apart."""
    engine.always(RICH)
    fields = {"n": n, "tools": [ADD], "max_tokens": 200}
    key = {"idempotency-key": "k"}
    first, again = [send(client, stream=False, headers=key, **fields) for _ in range(2)]
    assert again.json() == first.json()
    assert again.headers["x-rollpin-call-id"] == call_id(first)

    if stream:
        chunks = events_of(send(client, stream=True, headers=key, stream_options={"include_usage": True}, **fields))
        assert {chunk["id"] for chunk in chunks} == {first.json()["id"]}
        assert {chunk["created"] for chunk in chunks} == {first.json()["created"]}
        assert chunks[-1]["usage"] == first.json()["usage"]
    assert len(engine.requests) == n


@AS_STREAM
def test_a_client_that_comes_back_too_late_gets_the_same_draw_anew(
    shared: tuple[ServedProxy, FakeEngine], tmp_path: Path, *, stream: bool
) -> None:
    """The grace is over, the engine was told to stop; it is asked again with the same seed."""
    _, engine = shared
    with served(settings_for(tmp_path, engine.url, timeouts={"orphan_grace_s": 0.05})) as proxy:
        client = proxy.rollout()
        engine.requests.clear()
        engine.script(Fault.stall(STALL_AFTER, FOREVER, WORDS), WORDS)
        leave_early(client, engine, stream=stream)
        gone = client.call()
        if stream:
            assert Reader(client).ended().text == WORDS.text
        else:
            assert send(client).json()["choices"][0]["message"]["content"] == WORDS.text

        assert gone["failure"]["kind"] == "client_gone"
        assert [received.body["seed"] for received in engine.requests] == [gone["seed"]["value"]] * 2
        assert readings(client) == [(None, "client_gone"), ("client_gone", "delivered")]


def test_a_client_that_comes_back_while_the_cut_is_recorded_is_told_to_come_again(
    shared: tuple[ServedProxy, FakeEngine], tmp_path: Path
) -> None:
    """SDKs do, and their next try gets the same draw."""
    _, engine = shared
    with served(settings_for(tmp_path, engine.url, timeouts={"orphan_grace_s": 0.05})) as proxy:
        client, gate = proxy.rollout(), Gate(proxy)
        engine.requests.clear()
        engine.script(Fault.stall(STALL_AFTER, FOREVER, WORDS), WORDS)
        leave_early(client, engine, stream=True)
        until(lambda: gate.waiting)
        joined = Reader(client, stream=False)
        until_read(client, times=2)
        gate.open()

        assert joined.ended().status == 503
        assert client.chat().status_code == 200
        assert len({received.body["seed"] for received in engine.requests}) == 1
        assert len(client.call()["earlier_failures"]) == 1


def test_a_retry_of_what_could_not_be_kept_is_told_to_come_again(
    shared: tuple[ServedProxy, FakeEngine], tmp_path: Path
) -> None:
    """Until the loss is on record the retry reads the same error; then it gets the same draw again."""
    _, engine = shared
    with served(settings_for(tmp_path, engine.url, timeouts={"commit_wait_s": 0.1})) as proxy:
        client, gate = proxy.rollout(), Gate(proxy)
        gate.refuses_records = True
        assert send(client).status_code == 503
        busy = send(client, headers=RETRY)
        gate.open()
        lost = client.call()

        assert (busy.status_code, error_of(busy)["code"]) == (503, "store_unavailable")
        assert lost["failure"]["kind"] == "store_unavailable"
        assert send(client).status_code == 200
        assert readings(client) == [(None, "error_told"), ("retry_count", "error_told"), ("failed", "delivered")]


def test_a_loss_in_a_closed_rollout_is_nobodys_any_more(shared: tuple[ServedProxy, FakeEngine], tmp_path: Path) -> None:
    """What could not be kept comes too late; the proxy stops trying to tell it."""
    _, engine = shared
    with served(settings_for(tmp_path, engine.url, timeouts={"commit_wait_s": 0.1})) as proxy:
        client, gate = proxy.rollout(), Gate(proxy)
        gate.refuses_records = True
        assert send(client).status_code == 503
        assert proxy.control.post(f"/rollouts/{client.rollout_id}/finish").is_success
        gate.open()

        until(lambda: not proxy.wiring.turns.call_ids())
        assert client.call()["state"] == "late"


@AS_STREAM
def test_a_slow_proxys_reply_is_not_shown_once_another_try_was_made(
    client: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """Its lease had lapsed, as if it were dead: what its client would see is not what is on record."""
    engine.script(WORDS, Say("another try"))
    gate, slow = Gate(client.proxy), Reader(client, stream=stream)
    until(lambda: gate.waiting == 1)
    assert client.proxy.do(client.proxy.wiring.store.sweep(LONG_AFTER)) == 1
    again = Reader(client)
    until(lambda: gate.waiting == 2)
    gate.open()
    slow.ended()
    error = slow.error if stream else json.loads("".join(slow.lines))["error"]
    call = client.call()

    assert again.ended().text == call["message"]["content"] == "another try"
    assert error
    assert error["code"] == "draw_taken_over"
    assert not slow.is_done
    assert readings(client) == [(None, "error_told"), ("failed", "delivered")]
    assert len({received.body["seed"] for received in engine.requests}) == 1


def test_a_joined_reply_that_fails_is_told_to_all(client: RolloutClient, engine: FakeEngine) -> None:
    """One failure, one loss."""
    engine.script(Fault.status(500))
    gate = Gate(client.proxy)

    def all_have_joined() -> None:
        until(lambda: gate.waiting)
        until_read(client, times=3)
        gate.open()

    answers = at_once(3, lambda: send(client, headers={"idempotency-key": "k"}), all_have_joined)

    assert [error_of(answer)["code"] for answer in answers] == ["engine_error"] * 3
    assert readings(client) == [(None, "error_told"), *[("idempotency_key", "error_told")] * 2]
    assert len(engine.requests) == 1


# --- deliberate repeats ---


@AS_STREAM
def test_identical_requests_side_by_side_are_draws_of_their_own(
    client: RolloutClient, engine: FakeEngine, *, stream: bool
) -> None:
    """Best-of-n: nobody left, nothing failed."""
    gate = Gate(client.proxy)

    def all_are_drawn() -> None:
        until(lambda: gate.waiting == 4)
        gate.open()

    answers = at_once(4, lambda: send(client, stream=stream), all_are_drawn)
    calls = client.calls()

    assert sorted(call["seed"]["occurrence"] for call in calls) == [0, 1, 2, 3]
    assert len({call["seed"]["value"] for call in calls}) == 4
    assert len({call_id(answer) for answer in answers}) == 4


@AS_STREAM
def test_a_repeat_after_delivery_is_a_new_draw(client: RolloutClient, *, stream: bool) -> None:
    """A harness that repeats itself on purpose never hears an echo."""
    answers = [send(client, stream=stream) for _ in range(3)]

    assert len({call_id(answer) for answer in answers}) == 3
    assert [call["seed"]["occurrence"] for call in client.calls()] == [0, 1, 2]


def test_a_marked_retry_among_several_is_a_new_draw(client: RolloutClient) -> None:
    """A guess would give one sample to two."""
    send(client)
    send(client)
    send(client, headers=RETRY)

    assert len(client.calls()) == 3


@pytest.mark.parametrize("header", [name for name in LANE_HEADERS if name != "user-agent"])
def test_other_lanes_never_share(client: RolloutClient, engine: FakeEngine, header: str) -> None:
    """A sub-agent that asks what its parent asked is no retry of it."""
    engine.script(Fault.status(500))
    send(client, headers={header: "parent"})
    other = send(client, headers={header: "child"} | RETRY)
    again = send(client, headers={header: "parent"} | RETRY)
    first, second = client.calls()

    assert (call_id(other), call_id(again)) == (second["call_id"], first["call_id"])
    assert (len(first["earlier_failures"]), second["earlier_failures"]) == (1, [])


def test_another_version_of_a_client_is_no_other_lane(client: RolloutClient, engine: FakeEngine) -> None:
    """A retry may come through another library."""
    engine.script(Fault.status(500))
    send(client, headers={"user-agent": "harness/1"})
    send(client, headers={"user-agent": "harness/2"})

    assert len(client.call()["earlier_failures"]) == 1


@pytest.mark.parametrize("headers", [{}, RETRY, {"idempotency-key": "k"}], ids=["unmarked", "marked", "keyed"])
@pytest.mark.parametrize("path", ["/messages", "/responses"])
def test_another_api_repeats_nothing(client: RolloutClient, engine: FakeEngine, path: str, headers: Any) -> None:
    """Its client is another program, which lost nothing; the conversation is one, so that its draws are counted."""
    limit = {"/messages": "max_tokens", "/responses": "max_output_tokens"}[path]
    told = {"/messages": {"messages": [{"role": "user", "content": "hello"}]}, "/responses": {"input": "hello"}}[path]
    body = {"model": "policy", limit: 50, **told}
    engine.script(Fault.status(500))
    send(client, max_tokens=50, headers=headers)
    other = client.http.post(path, json=body, headers=headers)
    again = send(client, max_tokens=50, headers=headers)
    first, second = client.calls()

    assert (call_id(other), call_id(again)) == (second["call_id"], first["call_id"])
    assert (first["context"], len(first["earlier_failures"])) == (second["context"], 1)
    assert (second["seed"]["occurrence"], second["earlier_failures"]) == (1, [])


def test_keys_tell_draws_apart(client: RolloutClient, engine: FakeEngine) -> None:
    """Best-of-n by clients that name each request: a failure of one is made good by itself alone."""
    engine.script(Fault.status(500))
    answers = [send(client, headers={"idempotency-key": key}) for key in ("a", "b", "a")]

    assert call_id(answers[0]) == call_id(answers[2]) != call_id(answers[1])
    assert [call["seed"]["occurrence"] for call in client.calls()] == [0, 1]


# --- after being turned away ---


@pytest.fixture
def narrow(shared: tuple[ServedProxy, FakeEngine], tmp_path: Path) -> Iterator[RolloutClient]:
    """A rollout with room for one call at a time."""
    limits = {"calls_at_once_per_rollout": 1}
    with served(settings_for(tmp_path, shared[1].url, limits=limits)) as proxy:
        yield proxy.rollout()


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_retry_of_what_was_turned_away_is_a_draw_of_its_own(narrow: RolloutClient, refusals: int) -> None:
    """Nothing was drawn for it: the one identical call on record is another sample, and no second may be its echo."""
    gate, first = Gate(narrow.proxy), Reader(narrow)
    until(lambda: gate.waiting)
    refused = [send(narrow, headers={"x-stainless-retry-count": str(tries)}) for tries in range(refusals)]
    gate.open()
    assert {error_of(answer)["code"] for answer in refused} == {"too_many_calls"}
    assert first.ended().is_done
    own = send(narrow, headers={"x-stainless-retry-count": str(refusals)})
    calls = narrow.calls()

    assert [call["call_id"] for call in calls][1:] == [call_id(own)]
    assert [call["seed"]["occurrence"] for call in calls] == [0, 1]


def test_sdks_that_are_turned_away_draw_each_for_itself(narrow: RolloutClient, engine: FakeEngine) -> None:
    """Best of three, at once, with room for one."""
    engine.always(WORDS)
    created = narrow.created

    def ask() -> Any:
        with openai.OpenAI(base_url=created["base_url"], api_key=created["api_key"], max_retries=50) as sdk:
            return sdk.chat.completions.with_raw_response.create(
                model="policy", messages=[{"role": "user", "content": "hello"}]
            )

    answers = at_once(3, ask)

    assert len({answer.headers["x-rollpin-call-id"] for answer in answers}) == 3
    assert [call["seed"]["occurrence"] for call in narrow.calls()] == [0, 1, 2]


# --- what breaks again and again ---


@AS_STREAM
def test_a_draw_that_breaks_twice_is_given_up(client: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """The third try is the next occurrence; what came of the first stays on record."""
    broken = Fault.abort(3, WORDS)
    engine.script(broken, broken)
    answers = [send(client, stream=stream, headers=headers) for headers in (None, RETRY, RETRY)]
    given_up, drawn = client.calls()

    assert [call_id(answer) for answer in answers] == [given_up["call_id"]] * 2 + [drawn["call_id"]]
    assert (given_up["state"], len(given_up["earlier_failures"])) == ("failed", 1)
    assert (drawn["state"], drawn["seed"]["occurrence"]) == ("done", 1)
    assert len({received.body["seed"] for received in engine.requests}) == 2


@AS_STREAM
def test_what_never_began_is_not_given_up(client: RolloutClient, engine: FakeEngine, *, stream: bool) -> None:
    """An engine that is down says nothing about the draw."""
    engine.script(*[Fault.status(500)] * 4)
    for _ in range(5):
        send(client, stream=stream)

    assert (client.call()["state"], len(client.call()["earlier_failures"])) == ("done", 4)


# --- across a restart ---


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def noted(calls: Iterable[Json]) -> list[Json]:
    """The calls, once it is on record how each reading of them ended."""
    found = list(calls)
    return found if all(one["outcome"] for call in found for one in call["deliveries"]) else []


@pytest.mark.parametrize("n", [1, 2])
def test_a_retry_after_a_kill_gets_the_same_draw(tmp_path: Path, n: int) -> None:
    """kill -9 in mid-reply: the next proxy knows what was asked, and that nobody got it."""
    with FakeEngine("vllm") as engine:
        engine.script(*[Fault.stall(STALL_AFTER, FOREVER, WORDS)] * n)
        engine.always(WORDS)
        with proxy_process(tmp_path, engine.url) as (process, url):
            base_url, key = new_rollout(url, "r1")
            path = f"{base_url}/chat/completions"
            with httpx.stream(
                "POST", path, json=asked(stream=True, n=n), headers=bearer(key), timeout=PATIENCE_S
            ) as response:
                lines = response.iter_lines()
                next(lines)
                until(lambda: len(engine.requests) == n)
                process.kill()
                process.join(30)
        with proxy_process(tmp_path, engine.url) as (_, url):
            path = f"{url}/rollouts/r1/v1/chat/completions"
            again = httpx.post(path, json=asked(n=n), headers=bearer(key), timeout=PATIENCE_S)
            calls = until(lambda: noted(read_calls(url, "r1")))
        seeds = [received.body["seed"] for received in engine.requests]

    assert call_id(again) == call_id(response)
    assert sorted(seeds[:n]) == sorted(seeds[n:]) == sorted(call["seed"]["value"] for call in calls)
    for call in calls:
        assert [failure["kind"] for failure in call["earlier_failures"]] == ["proxy_died"]
        assert [(one["claim"], one["outcome"]) for one in call["deliveries"]] == [
            (None, "lost"),
            ("failed", "delivered"),
        ]


def test_a_retry_after_a_stop_gets_the_same_draw(tmp_path: Path) -> None:
    """SIGTERM cuts what does not end in time; the client is told to come again, and does."""
    with FakeEngine("sglang") as engine:
        engine.script(Fault.stall(STALL_AFTER, FOREVER, WORDS), WORDS)
        settings = settings_for(tmp_path, engine.url)
        with served(settings) as proxy:
            first = proxy.rollout(rollout_id="r1")
            reader = Reader(first)
            until(lambda: reader.text)
            proxy.do(proxy.wiring.turns.drain(0, 10))
            reader.ended()
        with served(settings) as proxy:
            created = first.created | {"base_url": f"{proxy.url}/rollouts/r1/v1"}
            second = RolloutClient(proxy, created)
            assert second.chat().status_code == 200
            call = second.call()

    assert reader.error is not None
    assert reader.error["code"] == "proxy_stopped"
    assert [failure["kind"] for failure in call["earlier_failures"]] == ["proxy_stopped"]
    assert len({received.body["seed"] for received in engine.requests}) == 1


SEEDINGS = {
    "another run seed": ({"run_seed": 7}, {"run_seed": 8}),
    "another use of the client's seed": ({"client_seed": "honour"}, {"client_seed": "mix"}),
}


@pytest.mark.parametrize(("before", "after"), list(SEEDINGS.values()), ids=list(SEEDINGS))
def test_a_draw_of_other_seed_settings_is_not_taken_over(tmp_path: Path, before: Json, after: Json) -> None:
    """Its seed would stand on record as made of settings that never made it."""
    with FakeEngine("vllm") as engine:
        with served(settings_for(tmp_path, engine.url, **before)) as proxy:
            created = proxy.rollout(rollout_id="r").created
            engine.script(Fault.cut(after_events=STALL_AFTER, say=WORDS))
            assert RolloutClient(proxy, created).chat(seed=5).status_code == 502
        with served(settings_for(tmp_path, engine.url, **after)) as proxy:
            client = RolloutClient(proxy, {**created, "base_url": f"{proxy.url}/rollouts/r/v1"})
            assert client.chat(seed=5).status_code == 200
            seeds = [(call["state"], call["seed"]["occurrence"]) for call in client.calls()]

    assert seeds == [("failed", 0), ("done", 1)]
    assert verify_store(tmp_path / "rollpin.db", Looking()).faults == []
