"""Weights that only the trainer tells of: its word is of the process that it was given for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.engine import pool
from tests.fakes import FakeEngine
from tests.fakes.switch import Switch
from tests.served import ServedProxy, served, settings_for

Json = dict[str, Any]


class Site:
    """Two engines of which one answers at an address, and proxies in front of it, one after another on one store."""

    def __init__(self, running: ExitStack, folder: Path, old: Json, new: Json) -> None:
        self._folder = folder
        self.old, self.new = (running.enter_context(FakeEngine("vllm", **options)) for options in (old, new))
        self.switch = running.enter_context(Switch(self.old.url))

    def proxy(self) -> Any:
        """Serve for a block."""
        return served(settings_for(self._folder, self.switch.url))

    def replace(self) -> None:
        """Another process takes the address, as after a quick restart."""
        self.switch.turn(self.new.url, drop=True)


Start = Callable[..., Site]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Engines that are looked at for a reason only."""
    monkeypatch.setattr(pool, "WELL_LOOK_S", 3600.0)
    with ExitStack() as running:
        yield lambda new=None, **options: Site(running, tmp_path, options, new or options)


def tell(proxy: ServedProxy, version: str) -> None:
    answer = proxy.control.post("/weights", json={"version": version})
    assert answer.status_code == 200, answer.text


def label(proxy: ServedProxy) -> tuple[str | None, list[str]]:
    """What the only segment of a new call says of its weights."""
    client = proxy.rollout()
    assert client.chat().status_code == 200
    (segment,) = client.call()["segments"]
    return segment["weight_version"], segment["notes"]


def shown(proxy: ServedProxy) -> Json:
    (engine,) = proxy.control.get("/engines").json()["engines"]
    return {name: engine["weights"][name] for name in ("version", "lapsed")}


UNTOLD = (None, ["version_not_told"])


def test_weights_told_of_one_process_are_not_those_of_the_next(start: Start) -> None:
    """An engine that was started anew has its first weights: unknown until told, and everybody is shown it."""
    site = start()
    with site.proxy() as proxy:
        tell(proxy, "w1")
        before = label(proxy)
        site.replace()
        with capture_logs() as said:
            behind = label(proxy)
        lapsed = shown(proxy)
        tell(proxy, "w2")
        again = label(proxy)

        assert (before, behind, again) == (("w1", []), UNTOLD, ("w2", []))
        assert lapsed == {"version": None, "lapsed": "w1"}
        assert shown(proxy) == {"version": "w2", "lapsed": None}
        assert [line["version"] for line in said if "tell them again" in line["event"]] == ["w1"]


def test_a_word_is_about_the_process_that_is_there_when_it_is_given(start: Start) -> None:
    """Also where nobody has noticed yet that it is another one."""
    site = start()
    with site.proxy() as proxy:
        tell(proxy, "w1")
        site.replace()
        tell(proxy, "w2")

        assert label(proxy) == ("w2", [])


@pytest.mark.parametrize("is_replaced", [False, True], ids=["the_same", "another"])
def test_a_word_outlives_the_proxy_and_not_the_engine(start: Start, *, is_replaced: bool) -> None:
    """The store keeps whom it was about, so that a machine that starts anew takes nothing for trained."""
    site = start()
    with site.proxy() as proxy:
        tell(proxy, "w1")
    if is_replaced:
        site.replace()
    with site.proxy() as proxy:
        assert label(proxy) == (UNTOLD if is_replaced else ("w1", []))


def test_a_word_that_is_about_no_certain_process_lapses_when_the_engine_was_away(start: Start) -> None:
    """Several API servers of a vLLM do not tell when they began; then whoever was away may be another."""
    site = start(api_servers=2)
    with site.proxy() as proxy:
        tell(proxy, "w1")
        before = label(proxy)
        site.old.stop()
        proxy.do(proxy.wiring.pool.look())
        away = proxy.wiring.pool.engines[0].problem
        site.old.start()
        proxy.do(proxy.wiring.pool.look())

        assert (before, away is None) == (("w1", []), False)
        assert label(proxy) == UNTOLD
        assert shown(proxy) == {"version": None, "lapsed": "w1"}


def test_a_word_that_is_about_no_certain_process_does_not_outlive_the_proxy(start: Start) -> None:
    """Nobody watched the engine meanwhile."""
    site = start(api_servers=2)
    with site.proxy() as proxy:
        tell(proxy, "w1")
    with site.proxy() as proxy:
        behind = label(proxy)
        tell(proxy, "w1")

        assert (behind, label(proxy)) == (UNTOLD, ("w1", []))


def test_what_an_engine_told_is_not_said_of_one_that_tells_nothing(start: Start) -> None:
    """A restart without development mode leaves the last reported version in the store."""
    site = start(dev_mode=True, new={"dev_mode": False})
    with site.proxy() as proxy:
        before = label(proxy)
    site.replace()
    with site.proxy() as proxy:
        assert (before, label(proxy)) == (("default", []), UNTOLD)
