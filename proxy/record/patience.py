"""A store that is away is waited for, where what was asked of it must not be lost to a moment's absence."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy import clock
from proxy.errors import StoreDown

STORE_PAUSE_S = 0.1

Told = TypeVar("Told")


async def patiently(ask: Callable[[], Awaitable[Told]], patience_s: float) -> Told:
    """What the store tells, asked again while it is away. Raises StoreDown where it stays away for longer."""
    give_up_at = clock.ticks() + patience_s
    while True:
        try:
            return await ask()
        except StoreDown:
            if clock.ticks() + STORE_PAUSE_S > give_up_at:
                raise
        await asyncio.sleep(STORE_PAUSE_S)
