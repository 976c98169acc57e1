"""uvicorn, with what it leaves to polling in our own hands: it stops when it is told to, not at its next look.

Signals are left to us as well: its own handling would kill the process before the last record is written.
"""

import asyncio
import contextlib
import socket

import structlog
import uvicorn

# The `date` of replies is made anew this often.
TICK_S = 1.0
# How soon the end of the last reply is seen; uvicorn has no event for it.
LOOK_S = 0.005

log = structlog.get_logger()


class Server(uvicorn.Server):
    """Serves until `stop`, then lets requests in flight end."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._told = asyncio.Event()

    def stop(self) -> None:
        """Take no more requests; for the thread of the server's loop."""
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        """Keep the date until one is told to stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go of those who follow, since they would stay for ever; then wait for everybody else."""
        self._stopping.set()
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._last_replies()
        except TimeoutError:
            self._cancel_replies()

    async def _last_replies(self) -> None:
        state = self.server_state
        while state.connections or state.tasks:  # noqa: ASYNC110  see LOOK_S
            await asyncio.sleep(LOOK_S)

    def _cancel_replies(self) -> None:
        tasks = self.server_state.tasks
        log.error("replies are given up: they did not end in time", replies=len(tasks))
        for task in tasks:
            task.cancel()

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield
