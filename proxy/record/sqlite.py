"""The store in one SQLite file, for one proxy process: nothing to install, every promise kept.

A second process is refused rather than shared with; who only wants to look opens the file with `SqliteReading`.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from proxy.errors import StoreDown
from proxy.record import call_rows, delivery_rows
from proxy.record.connection import SqliteDatabase, connect_reading, connect_writing, create_private
from proxy.record.faults import StoreUnreadable, store_down
from proxy.record.lock import FileLock
from proxy.record.migrations import migrate, missing, read_migrations
from proxy.record.row_store import RowStore, StoreReading
from proxy.record.writer import Durability


class SqliteReading(StoreReading):
    """A file that is only looked at, also while a proxy serves from it; needs no lock."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        super().__init__(SqliteDatabase(self._path))

    def _check(self) -> None:
        if not self._path.exists():
            raise StoreDown(f"store {self._path}: no such file; name the store that is meant by `store`")
        with closing(connect_reading(self._path)) as connection:
            if missing(connection, read_migrations()):
                raise StoreUnreadable(f"store {self._path} is of an older version: start `rollpin serve` on it once")


class SqliteStore(RowStore):
    """The whole store: a Store by its Protocol, and a lock on the file for as long as it is open."""

    is_shared = False

    def __init__(self, path: Path | str, durability: Durability = "fsync") -> None:
        self._path = Path(path)
        super().__init__(SqliteDatabase(self._path), durability)
        self._lock = FileLock(self._path)
        self._inode = 0

    async def open(self) -> None:
        """Take the file, bring it up to date, and give up what a dead owner had reserved."""
        try:
            await asyncio.to_thread(self._take)
            self._writer.start()
            self._reader.start()
            await self._writer.write(call_rows.give_up_all, durable=True)
            await self._writer.write(delivery_rows.lose_all, durable=True)
        except (sqlite3.Error, OSError) as error:
            await self.close()
            raise store_down(error, self._path) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await super().close()
        self._lock.release()

    async def ping(self) -> None:
        if not self._is_still_there():
            raise StoreDown(f"store {self._path} was removed or replaced while in use")
        await super().ping()

    async def clock_lead_s(self) -> float:
        """There is one clock."""
        return 0.0

    def _is_still_there(self) -> bool:
        """Whether the path still leads to the file that was opened; writing to a removed one would succeed in vain."""
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def _take(self) -> None:
        self._lock.take()
        create_private(self._path)
        self._inode = self._path.stat().st_ino
        with closing(connect_writing(self._path)) as connection:
            migrate(connection, read_migrations())
