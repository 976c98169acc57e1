"""Reads on connections and threads of their own, so that neither the event loop nor the writer waits for them.

Each read sees one snapshot, taken after every write that was acknowledged before it began.
"""

import asyncio
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

from proxy.errors import StoreDown
from proxy.record.database import Connection, Database

Result = TypeVar("Result")

# One long read must not hold up a look-up that a call waits for; more would only fight for the interpreter lock.
READER_THREADS = 2


class Reader:
    """Reads a store, whoever writes to it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()

    def start(self) -> None:
        self._threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="rollpin-reader")

    async def stop(self) -> None:
        if (threads := self._threads) is None:
            return
        self._threads = None
        await asyncio.to_thread(threads.shutdown)
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    async def read(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` on a snapshot."""
        if self._threads is None:
            raise StoreDown(f"store {self._database.name} is not open")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, work)

    def _read(self, work: Callable[[Connection], Result]) -> Result:
        with self._snapshot() as connection:
            return work(connection)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """A connection in a read transaction; one on which anything went wrong is not used again."""
        connection: Connection | None = None
        try:
            connection = self._take()
            self._database.begin_reading(connection)
            yield connection
            connection.execute("rollback")
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, self._database.error):
                raise self._database.down(error) from error
            raise
        self._idle.put(connection)

    def _take(self) -> Connection:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._database.connect_reading()
