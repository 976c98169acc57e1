"""Clients that leave: their calls are recorded all the same, and the engine is freed after a grace."""

import time

import pytest

from tests.api.conftest import Start
from tests.api.harness import FOREVER, Gate, Leaver, Reader, deliveries, until, until_left
from tests.fakes import Fault, Say

GRACE_S = 0.5
SHORT = {"timeouts": {"orphan_grace_s": GRACE_S}}
LONG = {"timeouts": {"orphan_grace_s": FOREVER}}
WORDS = Say("one two three four five")
# Events by which both engines have said some of the words, and not all.
SOME = 8
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@KINDS
@AS_STREAM
def test_a_client_that_leaves_before_any_answer_frees_the_engine_after_the_grace(
    start: Start, kind: str, *, stream: bool
) -> None:
    """Not before: a retry may still come for the reply."""
    proxy, engine = start(kind, **SHORT)
    client = proxy.rollout()
    engine.script(Fault.stall_before_headers(FOREVER))
    leaver = Leaver(client, stream=stream)
    until(lambda: engine.running == 1)
    left = leaver.leave()
    until(lambda: engine.running == 0)
    freed = time.monotonic()
    call = client.call()

    assert freed - left >= GRACE_S
    assert engine.aborted == 1
    assert (call["state"], call["failure"]["kind"]) == ("failed", "client_gone")
    assert deliveries(client) == ["client_gone"]


@KINDS
def test_a_client_that_leaves_in_mid_stream_leaves_its_partial(start: Start, kind: str) -> None:
    """What it read and what came in the grace is kept with the failure."""
    proxy, engine = start(kind, **SHORT)
    client = proxy.rollout()
    engine.script(Fault.stall(SOME, FOREVER, WORDS))
    leaver = Leaver(client, stream=True)
    leaver.read_until(b'"content":"o"')
    left = leaver.leave()
    until(lambda: engine.running == 0)
    freed = time.monotonic()
    call = client.call()

    assert freed - left >= GRACE_S
    assert (call["failure"]["kind"], engine.aborted) == ("client_gone", 1)
    assert call["message"]["content"].startswith("on")
    assert deliveries(client) == ["client_gone"]


@pytest.mark.parametrize(("kind", "stream"), [("vllm", False), ("sglang", True)])
def test_within_the_grace_a_reply_is_completed_and_recorded_whole(start: Start, kind: str, *, stream: bool) -> None:
    """The draw is not lost, and the engine was not disturbed."""
    proxy, engine = start(kind, **LONG)
    client = proxy.rollout()
    engine.script(Fault.stall(SOME, FOREVER, WORDS))
    leaver = Leaver(client, stream=stream)
    until(lambda: engine.running == 1)
    leaver.leave()
    until_left(client)
    engine.go_on()
    call = client.call()

    assert (call["state"], call["message"]["content"]) == ("done", WORDS.text)
    assert call["capture"]["complete"]
    assert engine.aborted == 0
    assert deliveries(client) == ["client_gone"]


@AS_STREAM
def test_a_client_that_leaves_after_the_end_has_got_it(start: Start, *, stream: bool) -> None:
    """Delivered is delivered."""
    client = start(**SHORT)[0].rollout()
    leaver = Leaver(client, stream=stream)
    leaver.read_until(b"[DONE]" if stream else b'"usage"')
    leaver.leave()

    assert client.call()["state"] == "done"
    assert deliveries(client) == ["delivered"]


def test_a_client_that_leaves_while_the_record_waits_is_gone(start: Start) -> None:
    """It cannot have seen the end; the call is recorded whole."""
    proxy, _ = start(**SHORT)
    client = proxy.rollout()
    gate = Gate(proxy)
    leaver = Leaver(client, stream=True)
    until(lambda: gate.waiting)
    leaver.leave()
    until_left(client)
    gate.open()

    assert client.call()["state"] == "done"
    assert deliveries(client) == ["client_gone"]


def test_those_who_stay_are_not_disturbed(start: Start) -> None:
    """Leaving ends one reading, nothing else."""
    proxy, engine = start(**SHORT)
    engine.always(Fault.slow(0.02, WORDS))
    clients = [proxy.rollout() for _ in range(4)]
    leavers = [Leaver(client, stream=True) for client in clients[:2]]
    readers = [Reader(client) for client in clients[2:]]
    for leaver in leavers:
        leaver.leave()

    assert [reader.ended().text for reader in readers] == [WORDS.text] * 2


@pytest.mark.parametrize("count", [20])
def test_leaving_gives_the_room_back(start: Start, count: int) -> None:
    """No call in flight is forgotten in the limits."""
    proxy, engine = start(limits={"calls_at_once": count}, **SHORT)
    engine.always(Fault.stall_before_headers(FOREVER))
    leavers = [Leaver(proxy.rollout()) for _ in range(count)]
    until(lambda: engine.running == count)
    for leaver in leavers:
        leaver.leave()
    until(lambda: engine.running == 0)
    engine.always(None)

    assert until(lambda: proxy.rollout().chat().status_code == 200)
