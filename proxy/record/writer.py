"""One thread that writes for everybody: what is waiting goes into one transaction, and one sync pays for all of it.

A caller hears back only after the commit. A job that fails is rolled back alone; where the store itself fails, the
whole group is told so and the next group starts on a fresh connection. A job whose caller left is done all the same.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from proxy.errors import StoreDown
from proxy.record.database import Connection, Database

Durability = Literal["fsync", "wal"]
Result = TypeVar("Result")

# Measured: at 100 rows a commit the sync is a small part of the whole, and nobody waits long for the group's end.
GROUP_SIZE = 100


@dataclass(slots=True, eq=False)
class Job(Generic[Result]):
    """Something to write, and who waits for it."""

    work: Callable[[Connection], Result]
    durable: bool
    """Whether it must survive a crash of the machine."""
    waiter: "asyncio.Future[Result]"
    result: Result | None = None
    error: BaseException | None = None


class Writer:
    """The only one in this process that writes to a store."""

    def __init__(self, database: Database, durability: Durability) -> None:
        self._database = database
        self._durability = durability
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None

    def start(self) -> None:
        # A daemon: what it has not committed was never acknowledged, so an exit need not wait for it.
        self._thread = threading.Thread(target=self._run, name="rollpin-writer", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Return once everything queued is written."""
        if (thread := self._thread) is None:
            return
        self._thread = None
        self._queue.put(None)
        await asyncio.to_thread(thread.join)

    async def write(self, work: Callable[[Connection], Result], *, durable: bool) -> Result:
        """Run `work` in a transaction and return its result once that is committed."""
        if self._thread is None:
            raise StoreDown(f"store {self._database.name} is not open")
        waiter: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.put(Job(work, durable, waiter))
        return await waiter

    def _run(self) -> None:
        ended = False
        while not ended:
            group, ended = self._next_group()
            if group:
                self._write(group)
        self._drop_connection()

    def _next_group(self) -> tuple[list[Job[Any]], bool]:
        """What is waiting now, at least one job; and whether the end was asked for."""
        group: list[Job[Any]] = []
        job = self._queue.get()
        while job is not None:
            group.append(job)
            if len(group) == GROUP_SIZE:
                return group, False
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _write(self, group: Sequence[Job[Any]]) -> None:
        synced = self._durability == "fsync" and any(job.durable for job in group)
        try:
            connection = self._connection = self._connection or self._database.connect_writing()
            self._database.begin_writing(connection, synced=synced)
            for job in group:
                self._attempt(connection, job)
            connection.execute("commit")
        except Exception as error:  # noqa: BLE001 - told to every caller; a dead writer would hang them all
            self._drop_connection()
            for job in group:
                job.error = self._database.down(error)
                job.error.__cause__ = error
        _tell(group)

    def _attempt(self, connection: Connection, job: Job[Any]) -> None:
        """Run one job so that its failure leaves no trace; raises only where the store failed."""
        connection.execute("savepoint job")
        try:
            job.result = job.work(connection)
        except Exception as error:
            if self._database.is_fault(error):
                raise
            connection.execute("rollback to job")
            job.error = error
        connection.execute("release job")

    def _drop_connection(self) -> None:
        if self._connection is not None:
            with suppress(Exception):  # of whatever kind: it is gone either way
                self._connection.close()
            self._connection = None


def _tell(group: Sequence[Job[Any]]) -> None:
    """Wake the callers, one wake-up per event loop."""
    waiting: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
    for job in group:
        waiting.setdefault(job.waiter.get_loop(), []).append(job)
    for loop, jobs in waiting.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, jobs)


def _settle(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        if job.waiter.done():
            continue
        if job.error is not None:
            job.waiter.set_exception(job.error)
        else:
            job.waiter.set_result(job.result)
