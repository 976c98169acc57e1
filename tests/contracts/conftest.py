"""The stores that the contract is for. Another store is another parameter of `store_url`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from proxy.model import Rollout
from proxy.record.opening import store_at
from proxy.record.store import Store
from tests import make
from tests.contracts.harness import Harness
from tests.postgres import see_off

Reopen = Callable[[], Awaitable[Store]]


@pytest.fixture
async def reopen(store_url: str) -> AsyncIterator[Reopen]:
    """Open the one store of this test; from the second time on, as after the death of the process that held it."""
    stack = AsyncExitStack()
    held = list[Store]()

    async def open_anew() -> Store:
        for dying in held:
            await dying.stay_alive(make.OWNER, make.STARTED_AT + make.LEASE_S, make.STARTED_AT)
        await stack.aclose()
        see_off(store_url, make.OWNER)
        held[:] = [store_at(store_url)]
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
