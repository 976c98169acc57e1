"""A reply while it grows, and all of them: who reads, who left, what is held back.

The turn runs in a task of its own. Clients only read from it; one that leaves can neither lose the record nor stop it.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from proxy.counted import counted
from proxy.errors import Busy, ProxyError
from proxy.model import CallId, Completion, JsonObject, Plan, RolloutId, Tokens

Ending: TypeAlias = tuple[Completion, ...] | ProxyError
"""A completion for each choice, or why there are none."""


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    """One of the engine's events, and the choice that it belongs to."""

    choice: int
    event: JsonObject


@dataclass(frozen=True, slots=True)
class Head:
    """What every reading of a reply begins with."""

    request_id: str
    call_ids: tuple[CallId, ...]
    created_at: float
    model: str
    """The engine's name for it."""
    plans: tuple[Plan, ...] = ()
    """One per choice; none where the reply comes out of the store, from another process at times."""


class Running:
    """The reply to one request: events of all its choices as they come, then an ending. Any number of readers."""

    def __init__(self, head: Head, *, call_s: float = 0, orphan_grace_s: float = 0) -> None:
        self.head = head
        self._grace_s = orphan_grace_s
        self._events: list[ChoiceEvent] = []
        self._held: list[ChoiceEvent] = []
        self._ending: Ending | None = None
        self._changed = asyncio.Event()
        self._readers = 0
        self._latest = asyncio.get_running_loop().time() + call_s
        self._until = self._latest
        self._limit: asyncio.Timeout | None = None
        self.is_followed = False
        """Whether another process draws it, and keeps its leases."""
        self.is_abandoned = False
        """Whether everybody who waited for this reply has left."""
        self.is_stopped = False
        """Whether the proxy itself is going down."""
        self.is_out_of_time = False
        """Whether the exchange was cut by its time limit."""

    @asynccontextmanager
    async def time_limit(self) -> AsyncIterator[None]:
        """Cut the block short when its time is over or nobody waits any more."""
        try:
            async with asyncio.timeout_at(self._until) as limit:
                self._limit = limit
                yield
        except TimeoutError:
            self.is_out_of_time = True
        finally:
            self._limit = None

    def publish(self, choice: int, event: JsonObject) -> None:
        """Let readers have an event now."""
        self._events.append(ChoiceEvent(choice, event))
        self._wake()

    def hold(self, choice: int, event: JsonObject) -> None:
        """Keep an event that shows the end until the record is durable."""
        self._held.append(ChoiceEvent(choice, event))

    def shown(self, choice: int) -> tuple[JsonObject, ...]:
        """The events of a choice that readers have been let have."""
        return tuple(said.event for said in self._events if said.choice == choice)

    def end(self, completions: tuple[Completion, ...]) -> None:
        """The record is durable: release what was held."""
        self._events.extend(self._held)
        self._settle(completions)

    def end_empty(self, finish_reason: str) -> None:
        """End without a token, as a reply that was cut before its first."""
        message: JsonObject = {"role": "assistant", "content": ""}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        ended = Completion(Tokens(), finish_reason, message, message, usage)
        for choice in range(len(self.head.call_ids)):
            self.publish(choice, {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]})
        self.end((ended,) * len(self.head.call_ids))

    def fail(self, error: ProxyError) -> None:
        """There is no end to show; readers are told why."""
        self._settle(error)

    async def read_on(self, position: int, patience_s: float | None) -> tuple[ChoiceEvent, ...] | None:
        """The events from `position` on, waiting for one; empty at the end, None where patience ran out first."""
        while position >= len(self._events) and self._ending is None:
            # Not wait_for: in Python 3.11 it can swallow the cancellation by which a reader leaves.
            try:
                async with asyncio.timeout(patience_s):
                    await self._changed.wait()
            except TimeoutError:
                return None
        return tuple(self._events[position:])

    async def settled_within(self, patience_s: float | None) -> bool:
        """Whether the ending came before patience ran out."""
        try:
            async with asyncio.timeout(patience_s):
                await self.ending()
        except TimeoutError:
            return False
        return True

    async def ending(self) -> Ending:
        """How it ended."""
        while self._ending is None:
            await self._changed.wait()
        return self._ending

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Be counted as one who waits for this reply; when the last one leaves, its time runs out."""
        self._readers += 1
        self._run_until(self._latest, abandoned=False)
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._run_until(asyncio.get_running_loop().time() + self._grace_s, abandoned=True)

    def stop(self) -> None:
        """Cut the exchange now; what has arrived is recorded."""
        self.is_stopped = True
        self._latest = asyncio.get_running_loop().time()
        self._run_until(self._latest, abandoned=self.is_abandoned)

    def _run_until(self, when: float, *, abandoned: bool) -> None:
        self.is_abandoned = abandoned
        self._until = min(when, self._latest)
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(self._until)

    def _settle(self, ending: Ending) -> None:
        self._ending = ending
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Turns:
    """All replies that are growing in this process."""

    def __init__(self, *, at_once: int, at_once_per_rollout: int) -> None:
        self._at_once = at_once
        self._per_rollout_at_once = at_once_per_rollout
        self._per_rollout: dict[RolloutId, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, Running] = {}
        self._admitted = 0

    @contextmanager
    def admission(self, rollout_id: RolloutId, calls: int = 1) -> Iterator["Admission"]:
        """Room for the calls of a request; given back when the block fails, else when its turn ends. Raises Busy."""
        if self._admitted + calls > self._at_once:
            raise Busy(f"at most {counted(self._at_once, 'call')} may be in flight in this proxy")
        if self._per_rollout.get(rollout_id, 0) + calls > self._per_rollout_at_once:
            raise Busy(f"at most {counted(self._per_rollout_at_once, 'call')} of one rollout may be in flight")
        admission = Admission(self, rollout_id, calls)
        try:
            yield admission
        except BaseException:
            admission.give_back()
            raise

    def start(self, running: Running, work: Coroutine[Any, Any, None], admission: "Admission") -> None:
        """Run a turn to its end, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work, name=running.head.request_id)
        self._tasks.add(task)
        self._running[running.head.request_id] = running

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._running.get(running.head.request_id) is running:
                del self._running[running.head.request_id]
            admission.give_back()

        task.add_done_callback(ended)

    def find(self, request_id: str) -> Running | None:
        """The growing reply to a request of this process."""
        return self._running.get(request_id)

    def call_ids(self) -> tuple[CallId, ...]:
        """The calls whose leases this process must keep."""
        drawn = (running.head.call_ids for running in self._running.values() if not running.is_followed)
        return tuple(chain.from_iterable(drawn))

    async def drain(self, seconds: float, commit_s: float) -> None:
        """Let turns end by themselves, then cut the rest and wait until they are recorded."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for running in list(self._running.values()):
            running.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=commit_s)

    def count(self, rollout_id: RolloutId, change: int) -> None:
        self._admitted += change
        self._per_rollout[rollout_id] = self._per_rollout.get(rollout_id, 0) + change
        if not self._per_rollout[rollout_id]:
            del self._per_rollout[rollout_id]


class Admission:
    """Room for some calls, given back once."""

    def __init__(self, turns: Turns, rollout_id: RolloutId, calls: int) -> None:
        self._turns = turns
        self._rollout_id = rollout_id
        self._held = calls
        turns.count(rollout_id, calls)

    def give_back(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._turns.count(self._rollout_id, -held)
