"""How each client's reading ended, noted in the store; where that is away for a moment, as soon as it is back.

No client waits for it, and nothing but the knowledge of what became of a reply hangs on it. So it is tried again for a
while only, and so many notes wait at most; one that is given up leaves its delivery `lost` once the process has ended.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

import structlog

from proxy import clock
from proxy.errors import StoreDown
from proxy.model import Delivery
from proxy.record.store import Store

TRY_EVERY_S = 0.5
PATIENCE_S = 600.0
# Some hundred bytes each.
MOST_WAITING = 10_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A note that could not be written yet."""

    delivery: Delivery
    give_up_at: float


class Deliveries:
    """One process's notes on their way to its store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[Waiting] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def note(self, delivery: Delivery) -> None:
        """Write down how a delivery ended, now or in the background."""
        try:
            await self._store.deliver(delivery)
        except StoreDown as error:
            self._put_off(delivery, error)

    async def settle(self, patience_s: float) -> None:
        """Wait for what is on its way, for a last while."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=patience_s)
            self._writing.cancel()
        if self._waiting:
            log.warning("deliveries were not noted", number=len(self._waiting), reason="the proxy stops")

    def _put_off(self, delivery: Delivery, error: StoreDown) -> None:
        if len(self._waiting) >= MOST_WAITING:
            log.warning("a delivery was not noted", delivery_id=delivery.delivery_id, reason="too many wait")
            return
        log.info("the note of a delivery waits for the store", delivery_id=delivery.delivery_id, reason=error.message)
        self._waiting.append(Waiting(delivery, clock.ticks() + PATIENCE_S))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all(), name="note deliveries")

    async def _write_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(TRY_EVERY_S)
            try:
                await self._write_waiting()
            except StoreDown as error:
                self._give_up_old(error)

    async def _write_waiting(self) -> None:
        while self._waiting:
            await self._store.deliver(self._waiting[0].delivery)
            self._waiting.popleft()

    def _give_up_old(self, error: StoreDown) -> None:
        while self._waiting and self._waiting[0].give_up_at <= clock.ticks():
            given_up = self._waiting.popleft().delivery
            log.warning("a delivery was not noted", delivery_id=given_up.delivery_id, reason=error.message)
