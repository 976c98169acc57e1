"""An engine that is replaced behind its URL between two looks: no reply is recorded as the one that is gone."""

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.engine import pool
from proxy.engine.pool import Pool
from proxy.engine.upstream import Upstream
from proxy.errors import EngineFault
from proxy.model import EngineRef
from proxy.settings import EngineSettings
from tests.fakes import FakeEngine, Fault
from tests.fakes.switch import Switch
from tests.patience import PATIENCE_S, until
from tests.served import RolloutClient, ServedProxy, served, settings_for

Json = dict[str, Any]
KINDS = pytest.mark.parametrize("kind", ["vllm", "sglang"])
AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


class Site:
    """A proxy, and an address with two engines of which one answers there."""

    def __init__(self, proxy: ServedProxy, switch: Switch, old: FakeEngine, new: FakeEngine) -> None:
        self.proxy, self.switch, self.old, self.new = proxy, switch, old, new

    def replace(self, *, drop: bool) -> None:
        """Another engine answers from now on, and nobody is about to look who it is."""
        until(self.is_vetted)
        self.switch.turn(self.new.url, drop=drop)

    def is_vetted(self) -> bool:
        """Whether the engine was looked at since a connection to it was opened."""
        (engine,) = self.proxy.wiring.pool.engines
        return engine.vetted >= self.proxy.wiring.upstream.connections.opened(engine.url)


Start = Callable[..., Site]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Engines that nobody looks at but for a reason."""
    monkeypatch.setattr(pool, "WELL_LOOK_S", 3600.0)
    with ExitStack() as running:

        def start_one(kind: Any, *, other_kind: Any = None, old: Any = None, new: Any = None, **fields: Any) -> Site:
            engines = [
                running.enter_context(FakeEngine(one, **(more or {})))
                for one, more in ((kind, old), (other_kind or kind, new))
            ]
            switch = running.enter_context(Switch(engines[0].url))
            proxy = running.enter_context(served(settings_for(tmp_path, switch.url, **fields)))
            return Site(proxy, switch, *engines)

        yield start_one


def said(client: RolloutClient, *, stream: bool = False, **fields: Any) -> str:
    """All that a client is told in one call."""
    return client.chat(stream=stream, **fields).text


def last(client: RolloutClient) -> Json:
    return client.calls()[-1]


@KINDS
@AS_STREAM
def test_a_reply_of_an_engine_started_anew_as_another_is_not_recorded_as_the_old_ones(
    start: Start, kind: Any, *, stream: bool
) -> None:
    """The client sees an error in place of the end, the draw may be asked for again, and then all is the new one's."""
    site = start(kind, new={"max_model_len": 2048})
    client = site.proxy.rollout()
    client.chat()
    site.replace(drop=True)
    told = said(client, stream=stream)
    failed = last(client)
    again = client.chat("another")

    assert "engine_unconfirmed" in told
    assert "[DONE]" not in told
    assert failed["failure"]["kind"] == "engine_unconfirmed"
    assert failed["replayable"]["value"] == "no"
    assert again.status_code == 200
    assert last(client)["failure"] is None
    assert context_length(site) == 2048


@AS_STREAM
def test_an_engine_that_answers_to_any_model_is_not_taken_for_the_old_one(start: Start, *, stream: bool) -> None:
    """SGLang answers whatever name is asked, so only a look can tell; the rollout then waits for its like."""
    site = start("sglang", new={"model": "other"})
    client = site.proxy.rollout()
    client.chat()
    site.replace(drop=True)
    said(client, stream=stream)
    later = site.proxy.rollout()
    later.chat()

    assert last(client)["failure"]["kind"] == "engine_unconfirmed"
    assert later.call()["engine"]["model"] == "other"


def test_a_lost_guarantee_is_noticed_by_the_next_call(start: Start) -> None:
    """The same model, no longer deterministic: nothing but the engine's own word tells."""
    site = start("sglang", new={"deterministic": False})
    client = site.proxy.rollout()
    client.chat()
    site.replace(drop=True)
    client.chat("two")
    client.chat("three")

    assert [call["failure"] and call["failure"]["kind"] for call in client.calls()] == [
        None,
        "engine_unconfirmed",
        None,
    ]
    assert last(client)["engine"]["deterministic"] is False


@KINDS
def test_no_call_goes_on_to_an_old_engine_that_is_still_there(start: Start, kind: Any) -> None:
    """A service points at another pod while the old one lives: connections to it are not used any more."""
    site = start(kind, new={"max_model_len": 2048})
    site.old.script(Fault.halt())
    one, other = site.proxy.rollout(), site.proxy.rollout()
    slow = threading.Thread(target=said, args=(one,), daemon=True)
    slow.start()
    until(lambda: site.old.halted == 1)
    site.replace(drop=False)
    said(other)
    site.old.go_on()
    slow.join(PATIENCE_S)
    asked_of_old = len(site.old.requests)
    after = other.chat("next")

    assert other.calls()[0]["failure"]["kind"] == "engine_unconfirmed"
    assert after.status_code == 200
    assert len(site.old.requests) == asked_of_old == 1


@KINDS
def test_an_engine_of_another_kind_is_never_taken_for_the_old_one(start: Start, kind: Any) -> None:
    """Whatever it makes of the call."""
    site = start(kind, other_kind="sglang" if kind == "vllm" else "vllm")
    client = site.proxy.rollout()
    client.chat()
    site.replace(drop=True)
    client.chat("two")

    assert last(client)["failure"] is not None


@KINDS
def test_one_that_is_the_same_costs_no_call(start: Start, kind: Any) -> None:
    """A connection that ended is nothing to fail for."""
    site = start(kind)
    client = site.proxy.rollout()
    client.chat()
    site.replace(drop=True)

    assert client.chat("two").status_code == 200
    assert last(client)["failure"] is None


@pytest.mark.anyio
async def test_nobody_looks_while_no_connection_is_opened() -> None:
    """Confirming costs nothing where nothing can have changed: here there is nobody left to ask."""
    async with asked_engine(looks_last=True) as (known, ref, opened):
        await known.confirm(ref, opened, 0.3)


@pytest.mark.anyio
async def test_an_engine_that_cannot_be_asked_is_not_confirmed() -> None:
    """When in doubt the reply is none, and says why."""
    async with asked_engine(looks_last=False) as (known, ref, opened):
        with pytest.raises(EngineFault) as fault:
            await known.confirm(ref, opened, 0.3)

    assert fault.value.code == "engine_unconfirmed"
    assert fault.value.may_retry


@pytest.mark.anyio
async def test_connections_that_are_opened_later_make_no_reply_wait() -> None:
    """Under load others are opened all the time; one look behind those that led to this reply is enough."""
    upstream = patient_upstream()
    with FakeEngine("vllm") as engine:
        known = Pool([EngineSettings(url=engine.url)], upstream, require_replayable=False)
        await known.look()
        (found,) = known.engines
        assert found.ref is not None
        numbers = itertools.count(1)
        upstream.connections.opened = lambda _url: next(numbers)  # type: ignore[method-assign]
        await known.confirm(found.ref, upstream.connections.opened(engine.url), 0)
    await upstream.aclose()


def patient_upstream() -> Upstream:
    return Upstream(connect_s=PATIENCE_S, silence_s=PATIENCE_S, probe_s=PATIENCE_S, reply_bytes=100_000)


@asynccontextmanager
async def asked_engine(*, looks_last: bool) -> AsyncIterator[tuple[Pool, EngineRef, int]]:
    """An engine that was looked at, before or after a connection to it was opened, and is gone now."""
    upstream = patient_upstream()
    with FakeEngine("vllm") as engine:
        known = Pool([EngineSettings(url=engine.url)], upstream, require_replayable=False)
        await known.look()
        await upstream.question(engine.url, "/v1/models")
        if looks_last:
            await known.look()
    (found,) = known.engines
    assert found.ref is not None
    yield known, found.ref, upstream.connections.opened(engine.url)
    await upstream.aclose()


def context_length(site: Site) -> Any:
    (engine,) = site.proxy.control.get("/engines").json()["engines"]
    return engine["context_length"]
