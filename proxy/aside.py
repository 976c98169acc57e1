"""Room at the engines for work beside the calls: replays, rescores. So much at once and no more, one class at a time.

A deterministic SGLang draws other tokens where its batch holds calls of another sampling class, so that such work must
not mix classes even with itself.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

SamplingClass = Literal["plain", "filtered"]


class Aside:
    """Lets work in by order of arrival, as long as there is room and nothing of another class is inside."""

    def __init__(self, at_once: int = 4) -> None:
        self._at_once = at_once
        self._inside = 0
        self._class: SamplingClass | None = None
        self._door = asyncio.Lock()
        self._left = asyncio.Condition()

    @asynccontextmanager
    async def room(self, kind: SamplingClass) -> AsyncIterator[None]:
        """Be inside for the block."""
        async with self._door, self._left:
            await self._left.wait_for(lambda: self._fits(kind))
            self._inside += 1
            self._class = kind
        try:
            yield
        finally:
            async with self._left:
                self._inside -= 1
                self._left.notify_all()

    def _fits(self, kind: SamplingClass) -> bool:
        return self._inside < self._at_once and (not self._inside or self._class == kind)


def sampling_class(effective: Mapping[str, float | int]) -> SamplingClass:
    """Which of SGLang's two sampling paths a call asks for: it filters the distribution, or takes all of it.

    Greedy counts as filtering (SGLang makes it top_k 1).
    """
    filters = effective["temperature"] == 0 or effective["top_p"] < 1 or effective["top_k"] > 0
    return "filtered" if filters or effective["min_p"] > 0 else "plain"
