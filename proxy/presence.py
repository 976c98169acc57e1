"""Whether this process is counted among the live ones, so that a pause waits for it; what is in doubt where it was not.

Others forget a process that gave no sign of life in time, or whose sessions were all lost. Then a pause may be granted
without it, and weights change under replies that it reads. Its row in the store proves that this has not happened:
nobody but the process itself writes it anew, and before that it counts a lapse. So where the row is found behind a
reply, and no lapse was counted since the reply was asked for, no pause was granted meanwhile that had not waited.
"""

import asyncio

import structlog

from proxy import clock
from proxy.pauses import Pauses
from proxy.record.clocks import AGREE_S, tell_lead
from proxy.record.patience import patiently
from proxy.record.store import Store

log = structlog.get_logger()


class Presence:
    """One process's place among those that share its store; one that shares it with nobody is always counted."""

    def __init__(self, store: Store, owner: str, lease_s: float, pauses: Pauses) -> None:
        self._store = store
        self._owner = owner
        self._lease_s = lease_s
        self._pauses = pauses
        self.joining = asyncio.Lock()
        self.lapses = 0
        """How often the process joined."""
        self.clock_lead_s = 0.0
        """How far this machine's clock was ahead of the store's for certain when they were compared last."""

    @property
    def is_shared(self) -> bool:
        """Whether others could take this process for dead."""
        return self._store.is_shared

    async def sign(self) -> None:
        """Give a sign of life. Where the process is not counted the door shuts: it has to join."""
        now = clock.now()
        if not await self._store.prolong(self._owner, now + self._lease_s, now):
            self._part()

    async def compare_clocks(self) -> None:
        """Say aloud where this machine's clock and the store's do not agree. Raises StoreDown."""
        self.clock_lead_s = await self._store.clock_lead_s()
        if abs(self.clock_lead_s) > AGREE_S:
            log.error("leases and pauses are told by clocks that do not agree", clock=tell_lead(self.clock_lead_s))

    async def join(self) -> None:
        """Be counted from now on; what was on its way until now is in doubt."""
        self.lapses += 1
        now = clock.now()
        await self._store.stay_alive(self._owner, now + self._lease_s, now)

    async def is_counted(self) -> bool:
        """Whether the process is counted at a moment after this call; if not, the door shuts. Raises StoreDown."""
        if not self.is_shared or await self._store.is_counted(self._owner):
            return True
        self._part()
        return False

    async def is_unbroken(self, lapses: int, patience_s: float) -> bool:
        """Whether it was counted all the time since there were so many lapses. Raises StoreDown once patience ends."""
        is_counted = await patiently(self.is_counted, patience_s)
        return is_counted and (not self.is_shared or self.lapses == lapses)

    def _part(self) -> None:
        if self.lapses and not self._pauses.is_apart:
            log.error("this proxy was taken for dead: no call goes to an engine until it has joined again")
        self._pauses.part()
