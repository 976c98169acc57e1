"""Held streams (`hold_streams`): clients see a reply once it is on record, and nothing of one that breaks off."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import FOREVER, Gate, Reader, until
from tests.fakes import FakeEngine, Fault, Say
from tests.served import ServedProxy, served, settings_for

WORDS = Say("one two three")
# Events by which both engines have said some of the words, and not all.
SOME = 8

Pair = tuple[ServedProxy, FakeEngine]


@pytest.fixture(params=["vllm", "sglang"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Start a proxy that holds streams, in front of an engine."""
    with ExitStack() as running:

        def start_one(**fields: Any) -> Pair:
            engine = running.enter_context(FakeEngine(request.param))
            (folder := tmp_path / f"{engine.url.rpartition(':')[2]}").mkdir()
            settings = settings_for(folder, engine.url, **{"hold_streams": True} | fields)
            return running.enter_context(served(settings)), engine

        yield start_one


def test_nothing_is_told_before_it_is_on_record(start: Callable[..., Pair]) -> None:
    """The engine has said it all, and the client waits for the commit."""
    proxy, engine = start(timeouts={"heartbeat_after_s": 0.05})
    engine.script(WORDS)
    gate = Gate(proxy)
    reader = Reader(proxy.rollout())
    until(lambda: gate.waiting and any(line.startswith(":") for line in reader.lines))

    assert reader.events == []
    gate.open()
    assert (reader.ended().text, reader.is_done) == (WORDS.text, True)


@pytest.mark.parametrize("n", [1, 2])
def test_what_is_told_is_what_a_live_stream_tells(start: Callable[..., Pair], n: int) -> None:
    """The same events in the same order, choice by choice, and the usage."""
    told = []
    for hold in (True, False):
        proxy, engine = start(hold_streams=hold)
        engine.always(WORDS)
        reader = Reader(proxy.rollout(group="same"), n=n, stream_options={"include_usage": True}).ended()
        told.append([by_choice(reader.chunks, choice) for choice in (*range(n), None)])

    assert told[0] == told[1]
    assert all(told[0])


def by_choice(chunks: list[Any], choice: int | None) -> list[Any]:
    """What was told of one choice; None for what is of none."""
    told = [(chunk["choices"], chunk.get("usage")) for chunk in chunks]
    return [one for one in told if (one[0][0]["index"] if one[0] else None) == choice]


def test_of_a_reply_that_breaks_off_only_the_error_is_told(start: Callable[..., Pair]) -> None:
    """A status that every client retries by; the retry gets the same draw, and counts once."""
    proxy, engine = start(timeouts={"heartbeat_after_s": FOREVER})
    engine.script(Fault.cut(SOME, WORDS), WORDS)
    client = proxy.rollout()
    broken, retried = Reader(client).ended(), Reader(client).ended()

    assert broken.status == 502
    assert broken.events == []
    assert (retried.status, retried.text) == (200, WORDS.text)
    assert [(call["state"], len(call["deliveries"])) for call in client.calls()] == [("done", 2)]


def test_after_signs_of_life_the_error_is_the_only_event(start: Callable[..., Pair]) -> None:
    """The status is out by then, so its sentence says what clients look for before they ask again."""
    proxy, engine = start(timeouts={"heartbeat_after_s": 0.05, "silence_s": 2})
    engine.script(Fault.stall(SOME, FOREVER, WORDS))
    reader = Reader(proxy.rollout()).ended()

    assert reader.status == 200
    assert reader.chunks == []
    assert reader.error is not None
    assert reader.error["code"] == "engine_stalled"
    assert reader.error["message"].startswith("provider returned error 504: ")
