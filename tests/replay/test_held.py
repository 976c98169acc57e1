"""Replays and rescores while a trainer is at work: they wait, and take no other engine for the recorded one."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from proxy.engine import pool
from tests.fakes import FakeEngine
from tests.fakes.switch import Switch
from tests.patience import PATIENCE_S, until
from tests.served import RolloutClient, ServedProxy, served, settings_for

Json = dict[str, Any]
PURPOSES = pytest.mark.parametrize("purpose", ["replay", "rescore"])
RESULT_LINE = {"replay": "verdict", "rescore": "rescore"}
RESULT = {"replay": "verdict", "rescore": "result"}
DONE = {"replay": "same", "rescore": "rescored"}


class Site:
    """A proxy before an address where one engine answers, and later another."""

    def __init__(self, running: ExitStack, folder: Path, kind: Any, old: Json, new: Json) -> None:
        self.old, self.new = (running.enter_context(FakeEngine(kind, **options)) for options in (old, new))
        self.switch = running.enter_context(Switch(self.old.url))
        settings = settings_for(folder, self.switch.url, replays_at_once=1)
        self.proxy: ServedProxy = running.enter_context(served(settings))

    def do(self, path: str, body: Json | None = None) -> None:
        answer = self.proxy.control.post(path, json=body)
        assert answer.status_code == 200, answer.text

    def recorded(self) -> RolloutClient:
        """A rollout with one call on record."""
        client = self.proxy.rollout()
        assert client.chat().status_code == 200
        client.call()
        return client

    def replace(self) -> None:
        self.switch.turn(self.new.url, drop=True)

    @property
    def asked(self) -> int:
        """Everything that an engine was asked to draw or to score."""
        return sum(len(engine.requests) + len(engine.scored) for engine in (self.old, self.new))


class Examined(threading.Thread):
    """A replay or rescore of a rollout by its route, on its way."""

    def __init__(self, site: Site, client: RolloutClient, purpose: str) -> None:
        super().__init__()
        self._proxy, self._path, self._purpose = site.proxy, f"/rollouts/{client.rollout_id}/{purpose}", purpose
        self._told: list[Json] = []
        self.start()

    def run(self) -> None:
        answer = self._proxy.control.post(self._path, json={}, timeout=PATIENCE_S)
        self._told = [json.loads(line) for line in answer.text.splitlines()]

    def result(self) -> tuple[str, list[str]]:
        """What was told of the one call, and why."""
        self.join(PATIENCE_S)
        (told,) = [line[RESULT_LINE[self._purpose]] for line in self._told[1:-1]]
        return told[RESULT[self._purpose]], told["reasons"]


Start = Callable[..., Site]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Engines that are looked at for a reason only."""
    monkeypatch.setattr(pool, "WELL_LOOK_S", 3600.0)
    with ExitStack() as running:
        yield lambda kind, new=None, **options: Site(running, tmp_path, kind, options, new or options)


def at_the_door(site: Site) -> None:
    """Wait until the only place beside the calls is taken."""
    until(site.proxy.wiring.aside.locked)


@PURPOSES
def test_what_is_examined_waits_for_the_end_of_a_pause(start: Start, purpose: str) -> None:
    """An engine that is paused would keep it hanging, and one in an update would draw by other weights."""
    site = start("sglang")
    client = site.recorded()
    site.do("/pause", {"mode": "retract", "lease_s": 600})
    before = site.asked
    examined = Examined(site, client, purpose)
    at_the_door(site)
    held = site.asked
    site.do("/resume")

    assert held == before
    assert examined.result() == (DONE[purpose], [])


@PURPOSES
def test_a_pause_that_nobody_resumes_is_told_as_the_reason(start: Start, purpose: str) -> None:
    """As calls are told; nothing is known of the record by it."""
    site = start("sglang")
    client = site.recorded()
    before = site.asked
    site.do("/pause", {"mode": "retract", "lease_s": 0.001})
    word, reasons = Examined(site, client, purpose).result()

    assert (word, reasons[0]) == ("failed", "engines_paused")
    assert site.asked == before


def test_an_engine_that_came_meanwhile_is_not_compared_with(start: Start) -> None:
    """One that ignores seeds took the address while the replay waited: that the record does not replay is not said."""
    site = start("sglang", new={"deterministic": False})
    client = site.recorded()
    site.do("/pause", {"mode": "retract", "lease_s": 600})
    examined = Examined(site, client, "replay")
    at_the_door(site)
    site.replace()
    site.do("/resume")

    assert examined.result()[0] in {"failed", "not_replayable"}


def test_a_process_whose_weights_nobody_told_does_not_diverge(start: Start) -> None:
    """vLLM outside development mode was started anew, so it has its first weights; what is known is said."""
    site = start("vllm")
    site.old._engine.load_weights("trained")
    site.do("/weights", {"version": "w1"})
    client = site.recorded()
    site.replace()

    assert Examined(site, client, "replay").result() == ("weights_gone", ["recorded w1", "now not told"])


def test_scores_of_a_process_that_came_meanwhile_are_not_told_as_those_of_the_weights(start: Start) -> None:
    """The version that was known before is not that of whoever answered."""
    site = start("vllm")
    site.do("/weights", {"version": "w1"})
    client = site.recorded()
    look = site.proxy.wiring.weights.look
    looks = iter([site.replace])

    async def replaced_behind(engine: Any) -> Any:
        known = await look(engine)
        if site.proxy.wiring.aside.locked():
            next(looks, lambda: None)()
        return known

    site.proxy.wiring.weights.look = replaced_behind  # type: ignore[method-assign]

    assert Examined(site, client, "rescore").result() == ("failed", ["weights_changed_in_mid_reply"])
