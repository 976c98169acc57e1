"""The turn: nothing ends for a client that is not on record, and nothing begins that cannot be recorded."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import Gate, Leaver, Reader, asked, deliveries, error_of, finish_of, until
from tests.fakes import FakeEngine, Fault, Say
from tests.served import RolloutClient, ServedProxy, served, settings_for

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


@KINDS
def test_a_stream_shows_its_end_only_once_it_is_on_record(start: Any, kind: str) -> None:
    """H1: all tokens come at once, the finish reason waits for the commit."""
    proxy, _ = start(kind)
    gate = Gate(proxy)
    reader = Reader(proxy.rollout(), stream_options={"include_usage": True})
    until(lambda: gate.waiting and reader.text == WORDS.text)

    assert (finish_of(reader.chunks), reader.is_done, reader.is_alive()) == (None, False, True)
    assert not any("usage" in chunk for chunk in reader.chunks)
    gate.open()
    assert reader.ended().is_done
    assert finish_of(reader.chunks) == "stop"


def test_a_whole_reply_waits_for_its_record(start: Any) -> None:
    """Not a byte before."""
    proxy, _ = start()
    client, gate = proxy.rollout(), Gate(proxy)
    with pytest.raises(Exception, match="timed out"):
        client.http.post("/chat/completions", json=asked(), timeout=0.3)
    gate.open()

    assert client.call()["message"]["content"] == WORDS.text


@AS_STREAM
def test_a_record_is_tried_again_until_the_store_is_back(start: Any, *, stream: bool) -> None:
    """The client notices a pause and nothing else; the record is made once."""
    proxy, _ = start()
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

    assert answer.status_code == (200 if stream else 503)
    assert '"code":"store_unavailable"' in answer.text.replace(": ", ":")
    assert '"finish_reason":"' not in answer.text.replace(": ", ":")
    assert "[DONE]" not in answer.text
    assert engine.running == 0


@AS_STREAM
def test_while_the_store_is_down_no_engine_is_asked(start: Any, *, stream: bool) -> None:
    """503 with Retry-After, and served again once it is back."""
    proxy, engine = start()
    client, gate = proxy.rollout(), Gate(proxy)
    gate.refuses_records = gate.refuses_reservations = True
    refused = client.post(asked(stream=stream))
    gate.open()

    assert (refused.status_code, error_of(refused)["code"]) == (503, "store_unavailable")
    assert refused.headers["retry-after"]
    assert "x-should-retry" not in refused.headers
    assert engine.requests == []
    assert client.post(asked(stream=stream)).status_code == 200


def test_a_reply_to_a_rollout_that_was_closed_meanwhile_is_late(start: Any) -> None:
    """C8: counted, never added, and the client is told 410."""
    proxy, _ = start()
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
    """C9: a rollout is read, finished and deleted while its call runs."""
    proxy, engine = start(timeouts={"orphan_grace_s": 0})
    client = proxy.rollout()
    engine.script(Fault.stall_before_headers(20))
    leaver = Leaver(client)
    until(lambda: engine.running)
    path = f"/rollouts/{client.rollout_id}"
    answers = [proxy.control.get(path), proxy.control.post(f"{path}/finish"), proxy.control.delete(path)]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert engine.running == 1
    leaver.leave()


# --- n choices ---


@KINDS
@AS_STREAM
def test_n_choices_are_n_draws(start: Any, kind: str, *, stream: bool) -> None:
    """S2: n requests with n seeds, merged into one reply whose usage counts the prompt once."""
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
def test_if_one_choice_fails_all_fail(start: Any, *, stream: bool) -> None:
    """Half a set is no answer: one is told, the others are cut and kept as its siblings."""
    proxy, engine = start()
    client = proxy.rollout()
    engine.script(Fault.slow(0.2, WORDS), Fault.cut(3, WORDS), Fault.slow(0.2, WORDS))
    answer = client.post(asked(stream=stream, n=3))
    until(lambda: engine.running == 0)

    assert "engine_cut" in answer.text
    assert "[DONE]" not in answer.text
    assert sorted(call["failure"]["kind"] for call in client.calls()) == ["engine_cut", *["sibling_failed"] * 2]
