"""A process that others took for dead: a pause may have been granted without it, so it labels and sends nothing."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.errors import StoreDown
from proxy.model import Pause
from proxy.wiring import Wiring
from tests.api.harness import until
from tests.fakes import FakeEngine
from tests.postgres import PostgresServer
from tests.served import ServedProxy, served, settings_for

PAUSE = Pause("pa_1", "wait", 1e9, 4e9)
UNPROVEN = "presence_unproven"
# So long that no sign of life falls due within a test.
LEASE_S = 3600


@dataclass
class Site:
    """A proxy that shares its store, and its engine, whose weights are called w1."""

    proxy: ServedProxy
    engine: FakeEngine

    @property
    def wiring(self) -> Wiring:
        return self.proxy.wiring

    def is_forgotten(self) -> None:
        """What another process does that takes this one for dead."""
        self.proxy.do(self.wiring.store.leave(self.wiring.owner))

    def cannot_join(self) -> "Joining":
        """Keep it from joining until it may."""
        joining = Joining(self.wiring.presence.join)
        self.wiring.presence.join = joining.join  # type: ignore[method-assign]
        return joining

    def drawn(self) -> int:
        """How many replies the engine was asked for."""
        return sum(request.path == "/v1/chat/completions" for request in self.engine.requests)


class Joining:
    """Attempts to be counted, in vain until they may succeed."""

    def __init__(self, join: Callable[[], Awaitable[None]]) -> None:
        self._join = join
        self.may = threading.Event()
        self.in_vain = 0

    async def join(self) -> None:
        if not self.may.is_set():
            self.in_vain += 1
            raise StoreDown("away")
        await self._join()


@pytest.fixture
def site(tmp_path: Path, postgres: PostgresServer) -> Iterator[Site]:
    with FakeEngine("vllm", dev_mode=True) as engine:
        httpx.post(f"{engine.url}/update_weight_version", json={"new_version": "w1"}).raise_for_status()
        settings = settings_for(tmp_path, engine.url, store=postgres.new_schema(), timeouts={"lease_s": LEASE_S})
        with served(settings) as proxy:
            yield Site(proxy, engine)


def notes(call: dict[str, Any]) -> list[tuple[str | None, list[str]]]:
    return [(segment["weight_version"], segment["notes"]) for segment in call["segments"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_was_drawn_while_its_process_was_taken_for_dead_has_no_version(site: Site, *, stream: bool) -> None:
    """Whether the process joins again before the reply ends or not; the next reply has one."""
    look_behind, client = site.wiring.weights.look_behind, site.proxy.rollout()

    async def forgotten_meanwhile(*asked: Any) -> Any:
        await site.wiring.store.leave(site.wiring.owner)
        return await look_behind(*asked)

    site.wiring.weights.look_behind = forgotten_meanwhile  # type: ignore[method-assign]
    assert client.chat("one", stream=stream).status_code == 200
    site.wiring.weights.look_behind = look_behind  # type: ignore[method-assign]
    assert client.chat("two", stream=stream).status_code == 200
    doubtful, certain = client.calls()

    assert notes(doubtful) == [(None, [UNPROVEN])]
    assert (doubtful["replayable"]["value"], UNPROVEN in doubtful["replayable"]["reasons"]) == ("no", True)
    assert notes(certain) == [("w1", [])]


def test_a_process_that_is_not_counted_asks_no_engine_until_it_is(site: Site) -> None:
    """Its calls wait as before a pause."""
    client, joining = site.proxy.rollout(), site.cannot_join()
    site.is_forgotten()
    with ThreadPoolExecutor(1) as harness:
        calling = harness.submit(client.chat)
        until(lambda: len(site.proxy.calls(client.rollout_id)) == 1)
        tried_by_then = joining.in_vain
        until(lambda: joining.in_vain > tried_by_then + 1)
        drawn_by_then = site.drawn()
        joining.may.set()
        answer = calling.result()

    assert (drawn_by_then, site.drawn(), answer.status_code) == (0, 1, 200)
    assert notes(client.call()) == [("w1", [])]


def test_a_pause_that_was_granted_without_a_process_is_obeyed_before_it_goes_on(site: Site) -> None:
    """It shuts its door and says so in the same step in which it is counted again."""
    store, joining = site.wiring.store, site.cannot_join()
    site.is_forgotten()
    until(lambda: site.wiring.pauses.is_apart)
    site.proxy.do(store.begin_pause(PAUSE))
    granted_without = site.proxy.do(store.silent(PAUSE.pause_id, 2e9))
    joining.may.set()
    until(lambda: not site.wiring.pauses.is_apart)

    assert granted_without == ()
    assert site.wiring.pauses.in_force == PAUSE
    assert site.proxy.do(store.is_counted(site.wiring.owner))
    assert site.proxy.do(store.silent(PAUSE.pause_id, 1e9)) == ()
    assert site.drawn() == 0


def test_a_process_that_is_forgotten_within_a_pause_acknowledges_it_again(site: Site) -> None:
    """Else the pause, told once more, would wait for it for ever."""
    store = site.wiring.store
    site.proxy.do(store.begin_pause(PAUSE))
    until(lambda: site.proxy.do(store.silent(PAUSE.pause_id, 1e9)) == ())
    site.is_forgotten()
    until(lambda: site.proxy.do(store.is_counted(site.wiring.owner)))

    until(lambda: site.proxy.do(store.silent(PAUSE.pause_id, 1e9)) == ())


def test_who_was_not_waited_for_is_forgotten_in_the_same_step(site: Site) -> None:
    """A lease that has run out counts only by that: the process finds out before it labels or sends anything."""
    store = site.wiring.store
    site.proxy.do(store.begin_pause(PAUSE))
    site.proxy.do(store.stay_alive("px_slow", 1e9 + 5, 1e9))
    until(lambda: site.proxy.do(store.silent(PAUSE.pause_id, 1e9)) == ("px_slow",))

    assert site.proxy.do(store.silent(PAUSE.pause_id, 1e9 + 6)) == ()
    assert not site.proxy.do(store.is_counted("px_slow"))
    assert not site.proxy.do(store.prolong("px_slow", 4e9, 1e9 + 6))
