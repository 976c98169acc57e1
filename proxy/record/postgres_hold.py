"""The session that says that a process lives: it does nothing else, and is opened anew at once where it is lost.

So a session to write with may be lost at any time, and nobody is taken for dead. A task of the event loop keeps it:
the server, not this process, sees that it is there, so that a busy loop looks no less alive.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import psycopg
import structlog

Session: TypeAlias = "psycopg.AsyncConnection[Any]"

# Between attempts while the server is away; the first comes at once.
REOPEN_EVERY_S = 0.25

log = structlog.get_logger()


class Hold:
    """A lock that one session after the other holds for a process."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]]) -> None:
        """`open_session` returns once the lock is held; what it raises of psycopg's is tried again."""
        self._open_session = open_session
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Return once it is held. Raises psycopg.Error."""
        if self._keeping is None:
            session = await self._open_session()
            self._keeping = asyncio.create_task(self._keep(session), name="hold presence")

    async def end(self) -> None:
        """Let go."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self, session: Session) -> None:
        while True:
            async with session:
                reason = await _loss(session)
            log.warning("the session that shows that this process lives was lost", reason=reason)
            session = await self._reopened()
            log.info("the session that shows that this process lives is back")

    async def _reopened(self) -> Session:
        while True:
            try:
                return await self._open_session()
            except psycopg.Error as error:
                log.debug("no session to show that this process lives", reason=type(error).__name__)
            await asyncio.sleep(REOPEN_EVERY_S)


async def _loss(session: Session) -> str:
    """Wait until the session has ended, and why."""
    try:
        async for _ in session.notifies():
            """Nobody is asked to notify; waiting for it shows the session's end."""
    except psycopg.Error as error:
        return type(error).__name__
    return "closed"
