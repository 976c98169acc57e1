"""The turn: nothing ends for a client that is not on record, and nothing begins that cannot be recorded."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import (
    FOREVER,
    Gate,
    Leaver,
    Reader,
    asked,
    deliveries,
    error_of,
    finish_of,
    until,
    until_left,
)
from tests.fakes import FakeEngine, Fault, Say
from tests.served import RolloutClient, ServedProxy, served, settings_for

Shared = tuple[ServedProxy, FakeEngine]
WORDS = Say("one two three")
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start a proxy in front of an engine of its own."""
    with ExitStack() as running:

        def start_one(kind: Any = "vllm", **fields: Any) -> tuple[ServedProxy, FakeEngine]:
            engine = running.enter_context(FakeEngine(kind))
            engine.always(WORDS)
            return running.enter_context(served(settings_for(tmp_path, engine.url, **fields))), engine

        yield start_one


@pytest.fixture(scope="module")
def everybodys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """One proxy with default settings and its engine."""
    with FakeEngine("vllm") as engine, served(settings_for(tmp_path_factory.mktemp("turn"), engine.url)) as proxy:
        yield proxy, engine


@pytest.fixture
def shared(everybodys: Shared) -> Iterator[Shared]:
    """The same as at its start: nothing asked, nothing scripted, no gate before the store."""
    proxy, engine = everybodys
    engine.requests.clear()
    engine.always(WORDS)
    store = proxy.wiring.store
    yield proxy, engine
    proxy.wiring.store = store
    engine._engine._queue.clear()


@KINDS
def test_a_stream_shows_its_end_only_once_it_is_on_record(start: Any, kind: str) -> None:
    """All tokens come at once, the finish reason waits for the commit."""
    proxy, _ = start(kind)
    gate = Gate(proxy)
    reader = Reader(proxy.rollout(), stream_options={"include_usage": True})
    until(lambda: gate.waiting and reader.text == WORDS.text)

    assert (finish_of(reader.chunks), reader.is_done, reader.is_alive()) == (None, False, True)
    assert not any("usage" in chunk for chunk in reader.chunks)
    gate.open()
    assert reader.ended().is_done
    assert finish_of(reader.chunks) == "stop"


def test_a_whole_reply_waits_for_its_record(shared: Shared) -> None:
    """Not a byte before."""
    proxy, _ = shared
    client, gate = proxy.rollout(), Gate(proxy)
    leaver = Leaver(client)
    until(lambda: gate.waiting)

    assert leaver.reads_nothing(0.3)
    gate.open()
    leaver.read_until(WORDS.text.encode())
    assert client.call()["message"]["content"] == WORDS.text


@AS_STREAM
def test_a_record_is_tried_again_until_the_store_is_back(shared: Shared, *, stream: bool) -> None:
    """The client notices a pause and nothing else; the record is made once."""
    proxy, _ = shared
    client, gate = proxy.rollout(), Gate(proxy)
    gate.refuses_records = True
    reader = Reader(client, stream=stream)
    until(lambda: gate.waiting >= 2)
    gate.open()

    assert reader.ended().status == 200
    assert client.call()["message"]["content"] == WORDS.text
    assert deliveries(client) == ["delivered"]


@AS_STREAM
def test_a_record_that_cannot_be_made_takes_the_end_away(start: Any, *, stream: bool) -> None:
    """Never unrecorded: beyond commit_wait_s the client is told that the store is down."""
    proxy, engine = start(timeouts={"commit_wait_s": 0.2})
    client, gate = proxy.rollout(), Gate(proxy)
    gate.refuses_records = True
    answer = client.post(asked(stream=stream))
    gate.open()

    assert answer.status_code == (200 if stream else 503)
    assert '"code":"store_unavailable"' in answer.text.replace(": ", ":")
    assert '"finish_reason":"' not in answer.text.replace(": ", ":")
    assert "[DONE]" not in answer.text
    until(lambda: engine.running == 0)


def test_a_reply_that_could_not_be_kept_is_a_loss_once_the_store_is_back(start: Any) -> None:
    """Its tokens are on record as a failure's, and the retry gets the same draw."""
    proxy, _engine = start(timeouts={"commit_wait_s": 0.2})
    client, gate = proxy.rollout(), Gate(proxy)
    gate.refuses_records = True
    client.post(asked())
    gate.refuses_records = False
    gate.open()
    lost = client.call()
    retried = client.post(asked())
    kept = client.call()

    assert (lost["state"], lost["failure"]["kind"], retried.status_code) == ("failed", "store_unavailable", 200)
    assert (kept["state"], kept["call_id"], kept["seed"]) == ("done", lost["call_id"], lost["seed"])
    assert kept["completion_token_ids"] == lost["completion_token_ids"]


@AS_STREAM
def test_while_the_store_is_down_no_engine_is_asked(shared: Shared, *, stream: bool) -> None:
    """503 with Retry-After, and served again once it is back."""
    proxy, engine = shared
    client, gate = proxy.rollout(), Gate(proxy)
    gate.refuses_records = gate.refuses_reservations = True
    refused = client.post(asked(stream=stream))
    gate.open()

    assert (refused.status_code, error_of(refused)["code"]) == (503, "store_unavailable")
    assert refused.headers["retry-after"]
    assert "x-should-retry" not in refused.headers
    assert engine.requests == []
    assert client.post(asked(stream=stream)).status_code == 200


def test_a_reply_to_a_rollout_that_was_closed_meanwhile_is_late(shared: Shared) -> None:
    """Counted, never added, and the client is told 410."""
    proxy, _ = shared
    client, gate = proxy.rollout(), Gate(proxy)
    reader = Reader(client)
    until(lambda: gate.waiting)
    proxy.control.post(f"/rollouts/{client.rollout_id}/finish")
    gate.open()

    assert reader.ended().error is not None
    assert not reader.is_done
    shown = proxy.control.get(f"/rollouts/{client.rollout_id}").json()
    assert (shown["counts"]["late"], shown["counts"]["completed"]) == (1, 0)


def test_calls_at_once_are_limited_per_rollout(start: Any) -> None:
    """429 with Retry-After for the one too many; another rollout is served, and so is the next call."""
    proxy, engine = start(limits={"calls_at_once_per_rollout": 2})
    client, gate = proxy.rollout(), Gate(proxy)
    readers = [Reader(client, text) for text in ("one", "two")]
    until(lambda: gate.waiting == 2)
    refused, before = client.chat("three"), len(engine.requests)
    other = Reader(proxy.rollout())
    until(lambda: gate.waiting == 3)
    gate.open()

    assert (refused.status_code, error_of(refused)["code"]) == (429, "too_many_calls")
    assert (refused.headers["retry-after"], before) == ("1", 2)
    assert [reader.ended().is_done for reader in (*readers, other)] == [True] * 3
    assert client.chat("four").status_code == 200


def test_calls_at_once_are_limited_in_all(start: Any) -> None:
    """Whoever they belong to."""
    proxy, _ = start(limits={"calls_at_once": 1})
    gate = Gate(proxy)
    reader = Reader(proxy.rollout())
    until(lambda: gate.waiting)
    refused = proxy.rollout().chat()
    gate.open()

    assert refused.status_code == 429
    assert reader.ended().is_done


def test_no_lock_is_held_during_a_generation(start: Any) -> None:
    """A rollout is read, finished and deleted while its call runs."""
    proxy, engine = start(timeouts={"orphan_grace_s": 0})
    client = proxy.rollout()
    engine.script(Fault.stall_before_headers(FOREVER))
    leaver = Leaver(client)
    until(lambda: engine.running)
    path = f"/rollouts/{client.rollout_id}"
    answers = [proxy.control.get(path), proxy.control.post(f"{path}/finish"), proxy.control.delete(path)]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert engine.running == 1
    leaver.leave()


# --- signs of life ---


def test_a_silent_stream_gets_signs_of_life(start: Any) -> None:
    """Comments that SSE clients skip, before the first event and between two."""
    proxy, engine = start(timeouts={"heartbeat_after_s": 0.05})
    engine.script(Fault.stall_before_headers(FOREVER, WORDS), Fault.stall(2, FOREVER, WORDS))
    for events in (0, 1):
        reader = Reader(proxy.rollout())
        until(lambda: len(reader.events) == events and reader.ends_in_signs_of_life)  # noqa: B023  within its turn
        engine.go_on()

        assert (reader.ended().text, reader.is_done) == (WORDS.text, True)


def test_a_sign_of_life_commits_the_status(start: Any) -> None:
    """What fails after it is told by an event."""
    proxy, engine = start(timeouts={"heartbeat_after_s": 0.05, "silence_s": 2})
    engine.script(Fault.stall_before_headers(FOREVER))
    reader = Reader(proxy.rollout()).ended()

    assert (reader.status, reader.is_done) == (200, False)
    assert reader.error is not None
    assert reader.error["code"] == "engine_stalled"


def test_a_whole_reply_gets_none_unless_a_setting_says_so(start: Any) -> None:
    """It could no longer fail with a status of its own."""
    proxy, engine = start(timeouts={"heartbeat_after_s": 0.05})
    engine.script(Fault.stall_before_headers(0.3), Fault.status(500))
    client = proxy.rollout()

    assert client.chat("one").content[:1] == b"{"
    assert client.chat("two").status_code == 502


def test_where_the_setting_says_so_blanks_come_before_the_body(start: Any) -> None:
    """JSON parsers skip them."""
    proxy, engine = start(timeouts={"heartbeat_after_s": 0.05}, heartbeat_unstreamed=True)
    engine.script(Fault.stall_before_headers(FOREVER, WORDS))
    with proxy.rollout().http.stream("POST", "/chat/completions", json=asked()) as answer:
        parts = answer.iter_raw(1)
        early = [next(parts) for _ in range(2)]
        engine.go_on()
        body = b"".join(parts)

    assert early == [b" "] * 2
    assert json.loads(body)["choices"][0]["message"]["content"] == WORDS.text


# --- repeats ---


@AS_STREAM
@pytest.mark.parametrize("first_stream", [False, True], ids=["first whole", "first streamed"])
def test_an_idempotency_key_gets_the_recorded_reply(shared: Shared, *, stream: bool, first_stream: bool) -> None:
    """Drawn once, delivered twice, in whatever form."""
    proxy, engine = shared
    client, headers = proxy.rollout(), {"idempotency-key": "k1"}
    first = client.http.post("/chat/completions", json=asked(stream=first_stream), headers=headers)
    again = client.http.post("/chat/completions", json=asked(stream=stream), headers=headers)

    assert again.headers["x-rollpin-call-id"] == first.headers["x-rollpin-call-id"]
    assert len(engine.requests) == 1
    assert until(lambda: [d["outcome"] for d in client.call()["deliveries"]] == ["delivered"] * 2)


def test_a_repeat_after_a_failure_draws_with_the_same_seed(shared: Shared) -> None:
    """The draw is the conversation's, not the attempt's; the failure stays on record."""
    proxy, engine = shared
    client = proxy.rollout()
    engine.script(Fault.status(500))
    answers = [client.chat().status_code for _ in range(2)]
    seeds = {received.body["seed"] for received in engine.requests}

    assert (answers, len(engine.requests), len(seeds)) == ([502, 200], 2, 1)
    assert (client.call()["state"], len(client.call()["earlier_failures"])) == ("done", 1)


def test_a_marked_retry_gets_the_one_reply_that_it_can_mean(shared: Shared) -> None:
    """`x-stainless-retry-count`, which every OpenAI SDK sends."""
    proxy, engine = shared
    client = proxy.rollout()
    answers = [
        client.http.post("/chat/completions", json=asked(), headers={"x-stainless-retry-count": count})
        for count in ("0", "1")
    ]

    assert len({answer.headers["x-rollpin-call-id"] for answer in answers}) == 1
    assert answers[0].json()["choices"] == answers[1].json()["choices"]
    assert len(engine.requests) == 1


def test_who_comes_back_after_leaving_joins_the_running_reply(shared: Shared) -> None:
    """Nothing is drawn twice because a client was impatient."""
    proxy, engine = shared
    client, gate = proxy.rollout(), Gate(proxy)
    leaver = Leaver(client, stream=True)
    until(lambda: gate.waiting)
    leaver.leave()
    until_left(client)
    reader = Reader(client)
    until(lambda: reader.text == WORDS.text)
    gate.open()

    assert reader.ended().is_done
    assert len(engine.requests) == 1
    assert client.call()["state"] == "done"


def test_requests_that_differ_are_never_taken_for_a_repeat(shared: Shared) -> None:
    """Other words, other tools, other lengths: other calls, though marked as retries."""
    client = shared[0].rollout()
    bodies = [asked(), asked("other"), asked(max_tokens=50), asked(stop="x"), asked(n=2), asked(logprobs=True)]
    for body in bodies:
        client.http.post("/chat/completions", json=body, headers={"x-stainless-retry-count": "1"})

    assert len({call["request_id"] for call in client.calls()}) == len(bodies)


# --- n choices ---


@KINDS
@AS_STREAM
def test_n_choices_are_n_draws(start: Any, kind: str, *, stream: bool) -> None:
    """N requests with n seeds, merged into one reply whose usage counts the prompt once."""
    proxy, engine = start(kind)
    engine.always(None)
    client = proxy.rollout()
    texts, usage = _choices(client, stream=stream, n=3)
    calls = client.calls()

    assert len({received.body["seed"] for received in engine.requests}) == 3
    assert {received.body["n"] for received in engine.requests} == {1}
    assert texts == [
        call["message"]["content"] or "" for call in sorted(calls, key=lambda call: call["seed"]["choice"])
    ]
    assert (len({call["request_id"] for call in calls}), len({call["call_id"] for call in calls})) == (1, 3)
    assert usage["prompt_tokens"] == len(calls[0]["prompt_token_ids"])
    assert usage["completion_tokens"] == sum(len(call["completion_token_ids"]) for call in calls)


def _choices(client: RolloutClient, *, stream: bool, n: int) -> tuple[list[str], dict[str, int]]:
    """The text of each choice, and the usage."""
    if not stream:
        reply = client.chat(n=n).json()
        return [choice["message"]["content"] or "" for choice in reply["choices"]], reply["usage"]
    texts, usage = [""] * n, {}
    for chunk in client.stream(n=n, stream_options={"include_usage": True}):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    return texts, usage


@AS_STREAM
def test_if_one_choice_fails_all_fail(shared: Shared, *, stream: bool) -> None:
    """Half a set is no answer: one is told, the others are cut and kept as its siblings."""
    proxy, engine = shared
    client = proxy.rollout()
    engine.script(Fault.stall(3, FOREVER, WORDS), Fault.cut(3, WORDS), Fault.stall(3, FOREVER, WORDS))
    answer = client.post(asked(stream=stream, n=3))
    until(lambda: engine.running == 0)

    assert "engine_cut" in answer.text
    assert "[DONE]" not in answer.text
    assert sorted(call["failure"]["kind"] for call in client.calls()) == ["engine_cut", *["sibling_failed"] * 2]
