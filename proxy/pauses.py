"""The door that calls pass on their way to an engine: shut while a trainer has the engines paused.

Shut as well while this process is apart from those that a pause waits for (proxy/presence.py).

Calls wait before it, with signs of life on their streams. It opens when the pause is resumed, and never by itself: once
the pause's lease has lapsed, those who wait and those who come are told to try again later.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy import clock
from proxy.errors import EngineFault
from proxy.model import Pause

# What those are told who come in vain.
RETRY_AFTER_S = 5


class Pauses:
    """This process's view of the pause in force."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._changed = asyncio.Event()
        self._ended: str | None = None
        self._inside = 0
        self.begun = 0
        """How many pauses this process has obeyed, renewed ones counted anew."""
        self.in_force: Pause | None = None
        self.is_apart = False
        """Whether pauses may be granted without this process."""

    def begin(self, pause: Pause) -> None:
        """Shut the door, or move the lease. A pause that has ended here does not come back by a late look."""
        if pause.pause_id != self._ended:
            self.in_force = pause
            self.begun += 1
            self._wake()

    def end(self) -> None:
        """Open the door."""
        if self.in_force is not None:
            self._ended, self.in_force = self.in_force.pause_id, None
            self._wake()

    def part(self) -> None:
        """Shut the door until this process has joined the others again."""
        self.is_apart = True

    def rejoin(self) -> None:
        """It has, and knows of the pause in force."""
        self.is_apart = False
        self._wake()

    def check(self) -> None:
        """Raise EngineFault where a call would come before a door that nobody is going to open in time."""
        if self.in_force is not None and self.in_force.lease_until <= clock.now():
            raise _paused("the engines are paused, and the trainer that paused them has not resumed in time")

    @asynccontextmanager
    async def passage(self) -> AsyncIterator[None]:
        """Be with the engines for the block, once the door is open.

        Raises EngineFault where the lease lapses, or patience ends, before that.
        """
        await self._wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._wake()

    async def emptied(self, patience_s: float) -> None:
        """Return once nobody is with the engines, or patience ends: calls that an engine holds stay where they are."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._inside:
                    await self._changed.wait()

    async def _wait(self) -> None:
        give_up_at = clock.ticks() + self._patience_s
        while self.in_force is not None or self.is_apart:
            self.check()
            rest_s = give_up_at - clock.ticks()
            if rest_s <= 0:
                raise _paused(f"{self._obstacle()} for longer than timeouts.pause_wait_s")
            if self.in_force is not None:
                rest_s = min(self.in_force.lease_until - clock.now(), rest_s)
            changed = self._changed
            try:
                async with asyncio.timeout(rest_s):
                    await changed.wait()
            except TimeoutError:
                continue

    def _obstacle(self) -> str:
        return (
            "the engines are paused" if self.in_force else "this proxy could not learn whether the engines are paused"
        )

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _paused(why: str) -> EngineFault:
    return EngineFault("engines_paused", 503, why, retry_after_s=RETRY_AFTER_S)
