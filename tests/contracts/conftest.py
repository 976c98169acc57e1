"""The stores that the contract is for. Another store is another parameter of `reopen`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from proxy.model import Rollout
from proxy.record.sqlite import SqliteStore
from proxy.record.store import Store
from tests import make
from tests.contracts.harness import Harness

Reopen = Callable[[], Awaitable[Store]]


@pytest.fixture(params=["sqlite"])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopen]:
    """Open the one store of this test; from the second time on, as after the death of the process that held it."""
    stack = AsyncExitStack()

    async def open_anew() -> Store:
        await stack.aclose()
        opened = SqliteStore(tmp_path / "store.db")
        await opened.open()
        stack.push_async_callback(opened.close)
        return opened

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
