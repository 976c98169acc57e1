"""The stores that the contract is for. Another store is another parameter of `make_store`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from proxy.model import Rollout
from proxy.record.postgres import PostgresStore
from proxy.record.sqlite import SqliteStore
from proxy.record.store import Store
from tests import make
from tests.contracts.harness import Harness
from tests.postgres import PostgresServer

Reopen = Callable[[], Awaitable[Store]]


@pytest.fixture(params=["sqlite", "postgres"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """The one store of this test, to be opened."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "store.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.new_schema()
    return lambda: PostgresStore(url)


@pytest.fixture
async def reopen(make_store: Callable[[], Store]) -> AsyncIterator[Reopen]:
    """Open the one store of this test; from the second time on, as after the death of the process that held it."""
    stack = AsyncExitStack()
    held = list[Store]()

    async def open_anew() -> Store:
        for dying in held:
            await dying.stay_alive(make.OWNER, make.STARTED_AT + make.LEASE_S, make.STARTED_AT)
        await stack.aclose()
        held[:] = [make_store()]
        await held[0].open()
        stack.push_async_callback(held[0].close)
        return held[0]

    async with stack:
        yield open_anew


@pytest.fixture
async def store(reopen: Reopen) -> Store:
    """An open, empty store."""
    return await reopen()


@pytest.fixture
async def rollout(store: Store) -> Rollout:
    """An open rollout in the store."""
    return (await store.create_rollouts([make.rollout()]))[0]


@pytest.fixture
def harness(store: Store, rollout: Rollout) -> Harness:
    """Asks and answers in that rollout."""
    return Harness(store, rollout)
