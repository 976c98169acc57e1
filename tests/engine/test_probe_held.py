"""When a probe is made, and when what it drew is thrown away: pauses, new weights and another engine in its course."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from proxy import clock
from proxy.engine import pool as pools
from proxy.engine.pool import Pool
from proxy.engine.upstream import Upstream
from proxy.model import EngineRef, Pause, Proof
from proxy.pauses import Pauses
from proxy.settings import EngineSettings
from tests.fakes import FakeEngine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No probe is given up for being slow."""
    monkeypatch.setattr(pools, "PROVE_S", PATIENCE_S)


@asynccontextmanager
async def probing(engine: FakeEngine) -> AsyncIterator[Pool]:
    """A pool that knows its engine and has not put it to its probe."""
    upstream = Upstream(connect_s=PATIENCE_S, silence_s=PATIENCE_S, probe_s=PATIENCE_S, reply_bytes=1_000_000)
    pool = Pool([EngineSettings(url=engine.url)], upstream, require_replayable=False, prove_engines=True)
    await pool.look()
    yield pool
    await upstream.aclose()


def proof_of(pool: Pool) -> Proof | None:
    (engine,) = pool.engines
    assert engine.ref is not None
    return engine.ref.facts.proof


async def test_a_probe_waits_for_the_end_of_a_pause() -> None:
    """As calls do: an engine that is paused would keep it waiting inside."""
    with FakeEngine("vllm") as engine:
        async with probing(engine) as pool:
            pauses = Pauses(PATIENCE_S)
            pauses.begin(Pause("pa", "abort", clock.now(), clock.now() + 600))
            pool.passage = pauses.passage
            proving = asyncio.create_task(pool.prove())
            await asyncio.wait({proving}, timeout=0.1)
            held = len(engine.requests)
            pauses.end()
            await proving

            assert held == 0
            assert proof_of(pool) is not None


async def test_draws_across_new_weights_prove_nothing() -> None:
    """Two draws by one seed differ then, and the engine is as good as before; the next probe tells."""
    with FakeEngine("vllm") as engine:
        async with probing(engine) as pool:
            pool.weather = told(itertools.count())
            await pool.prove()
            across = proof_of(pool)
            pool.weather = told(itertools.repeat(1))
            await pool.prove()

            assert across is None
            assert proof_of(pool) is not None


def told(words: "itertools.count[int] | itertools.repeat[int]") -> Callable[[EngineRef], Awaitable[int]]:
    async def tell(_engine: EngineRef) -> int:
        return next(words)

    return tell
