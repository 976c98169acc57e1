"""The way of replays and rescores to an engine: through the door that a pause shuts, and with proof of who answered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.model import EngineRef
from proxy.wiring import Wiring


@asynccontextmanager
async def with_engines(wiring: Wiring) -> AsyncIterator[None]:
    """Be with the engines for the block, as a call is: while none is paused, and none can be without this process.

    Raises EngineFault where a pause lasts for longer than its lease or than patience, StoreDown where nobody can tell.
    """
    while True:
        async with wiring.pauses.passage():
            if await wiring.presence.is_counted():
                yield
                return


async def confirmed(engine: EngineRef, opened: int, wiring: Wiring) -> EngineRef:
    """The engine as it is known once it is certain that its reply, begun behind so many connections, was its own.

    Raises EngineFault where it may be another's.
    """
    return await wiring.pool.confirm(engine, opened, wiring.settings.timeouts.commit_wait_s)
