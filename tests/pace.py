"""Another pace: event loops, threads and clients that stand still at times, as on a machine with other things to do.

What one test does in two threads happens in the order that the machine happens to give it. A test that holds in the
usual order alone fails once in hundreds of runs, where nobody can look. Here the order is disturbed on purpose: each
loop and each thread stops by itself now and then, for as long as a busy machine would stop it, while the others go on.
"""

import asyncio.base_events
import concurrent.futures.thread
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest

STALLS_S: Final = (0.02, 0.05, 0.1, 0.3, 0.8)
# How often each place stands still: per turn of a loop, start of a thread, piece of work, request, answer.
TURN, START, WORK, REQUEST, ANSWER = 0.003, 0.5, 0.03, 0.05, 0.03


class Pace:
    """Draws who stands still, and for how long."""

    def __init__(self, source: str) -> None:
        self._draws: Final = random.Random(source)

    def stall(self, chance: float) -> None:
        """Stand still with this chance; other threads go on."""
        if self._draws.random() < chance:
            time.sleep(self._draws.choice(STALLS_S))

    def before(self, chance: float, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, which at times begins late."""

        def late(*args: Any, **named: Any) -> Any:
            self.stall(chance)
            return work(*args, **named)

        return late

    def disturb(self, patch: pytest.MonkeyPatch) -> None:
        """Let every loop, thread, executor and client of this process keep this pace."""
        patch.setattr(
            asyncio.base_events.BaseEventLoop,
            "_run_once",
            self.before(TURN, asyncio.base_events.BaseEventLoop._run_once),  # type: ignore[attr-defined]
        )
        work_item: Any = concurrent.futures.thread._WorkItem  # type: ignore[attr-defined]
        patch.setattr(work_item, "run", self.before(WORK, work_item.run))
        self._disturb_threads(patch)
        self._disturb_clients(patch)

    def _disturb_threads(self, patch: pytest.MonkeyPatch) -> None:
        start = threading.Thread.start

        def start_late(thread: threading.Thread) -> None:
            thread.run = self.before(START, thread.run)  # type: ignore[method-assign]
            start(thread)

        patch.setattr(threading.Thread, "start", start_late)

    def _disturb_clients(self, patch: pytest.MonkeyPatch) -> None:
        send = httpx.Client.send

        def send_late(client: httpx.Client, *args: Any, **named: Any) -> httpx.Response:
            self.stall(REQUEST)
            answer = send(client, *args, **named)
            self.stall(ANSWER)
            return answer

        patch.setattr(httpx.Client, "send", send_late)
