"""Two trainers who pause and resume at once: no door stands open before engines that are paused."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy import update
from tests.fakes import FakeEngine
from tests.patience import until
from tests.served import ServedProxy, served, settings_for

LEASE_S = 3600.0


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine("sglang") as running:
        yield running


@pytest.fixture
def proxy(engine: FakeEngine, tmp_path: Path) -> Iterator[ServedProxy]:
    with served(settings_for(tmp_path, engine.url)) as running:
        running.control.timeout = None
        yield running


def before(thing: Any, name: str, monkeypatch: pytest.MonkeyPatch, first: Callable[[], Awaitable[Any]]) -> None:
    """Have something happen in front of the next call of a method."""
    real, coming = getattr(thing, name), [first]

    async def called(*arguments: Any, **named: Any) -> Any:
        if coming:
            await coming.pop()()
        return await real(*arguments, **named)

    monkeypatch.setattr(thing, name, called)


def pause(proxy: ServedProxy) -> httpx.Response:
    return proxy.control.post("/pause", json={"mode": "retract", "lease_s": LEASE_S})


def code(answer: httpx.Response) -> str:
    assert answer.status_code == 409, answer.text
    return str(answer.json()["error"]["code"])


def waits_until_resumed(proxy: ServedProxy, engine: FakeEngine) -> bool:
    """Whether a call stays before the engines, and passes once they are resumed."""
    client = proxy.rollout()
    calling = threading.Thread(target=client.chat)
    calling.start()
    until(lambda: bool(proxy.calls(client.rollout_id)))
    asked = len(engine.requests)
    resumed = proxy.control.post("/resume")
    calling.join()
    return (asked, resumed.status_code, client.call()["state"]) == (0, 200, "done")


def test_a_pause_that_begins_while_another_trainer_resumes_stays(
    proxy: ServedProxy, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines had been resumed when it came; they are paused again, and the one who resumed is told."""
    assert pause(proxy).status_code == 200
    wiring = proxy.wiring
    before(wiring.store, "end_pause", monkeypatch, lambda: update.pause("retract", LEASE_S, wiring))
    told = code(proxy.control.post("/resume"))

    assert told == "paused_meanwhile"
    assert engine._engine.pause == "retract"
    assert waits_until_resumed(proxy, engine)


def test_orders_that_crossed_are_given_again(
    proxy: ServedProxy, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's pause held before the order to resume reached the engine."""
    assert pause(proxy).status_code == 200
    wiring = proxy.wiring
    before(update, "_settle_weights", monkeypatch, lambda: update.pause("retract", LEASE_S, wiring))
    told = code(proxy.control.post("/resume"))

    assert told == "paused_meanwhile"
    assert engine._engine.pause == "retract"
    assert waits_until_resumed(proxy, engine)


def test_a_pause_behind_a_resume_finds_the_door_shut(
    proxy: ServedProxy, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pause had ended, and the door was about to open."""
    assert pause(proxy).status_code == 200
    wiring = proxy.wiring
    before(wiring.weights, "load", monkeypatch, lambda: update.pause("retract", LEASE_S, wiring))
    resumed = proxy.control.post("/resume")

    assert resumed.status_code == 200
    assert engine._engine.pause == "retract"
    assert waits_until_resumed(proxy, engine)


def test_a_pause_that_is_resumed_before_it_holds_leaves_nothing_paused(
    proxy: ServedProxy, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trainer must not take the engines for paused."""
    wiring = proxy.wiring
    before(wiring.store, "silent", monkeypatch, lambda: update.resume(wiring))
    told = code(pause(proxy))

    assert told == "resumed_meanwhile"
    assert engine._engine.pause is None
    assert proxy.rollout().chat().status_code == 200
