"""Reads on connections and threads of their own, so that neither the event loop nor the writer waits for them.

Each read sees one snapshot, taken after every write that was acknowledged before it began.
"""

import asyncio
import queue
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from proxy.errors import StoreDown
from proxy.record.faults import store_down

Result = TypeVar("Result")

# One long read must not hold up a look-up that a call waits for; more would only fight for the interpreter lock.
READER_THREADS = 2


class Reader:
    """Reads a store file, whoever writes to it."""

    def __init__(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._threads: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()

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

    async def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run `work` on a snapshot."""
        if self._threads is None:
            raise StoreDown(f"store {self._path} is not open")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, work)

    def _read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        with self._snapshot() as connection:
            return work(connection)

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection in a read transaction; one on which anything went wrong is not used again."""
        connection: sqlite3.Connection | None = None
        try:
            connection = self._take()
            connection.execute("begin")
            yield connection
            connection.execute("rollback")
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise store_down(error, self._path) from error
            raise
        self._idle.put(connection)

    def _take(self) -> sqlite3.Connection:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._connect(self._path)
