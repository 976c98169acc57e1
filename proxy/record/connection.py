"""How a store file is opened and used: one connection that writes, some that only read."""

import os
import sqlite3
from pathlib import Path

from proxy.errors import StoreDown
from proxy.record.database import Connection
from proxy.record.faults import is_store_fault, store_down

# Nobody but a person with a database tool can hold a lock for long; then callers are told rather than kept.
BUSY_TIMEOUT_S = 5.0
# A write-ahead log that a burst made large is cut back to this after the next checkpoint.
JOURNAL_SIZE_LIMIT = 64 * 2**20


class SqliteDatabase:
    """A store file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def error(self) -> type[Exception]:
        return sqlite3.Error

    def connect_writing(self) -> Connection:
        return connect_writing(self.path)

    def connect_reading(self) -> Connection:
        return connect_reading(self.path)

    def begin_writing(self, connection: Connection, *, synced: bool) -> None:
        connection.execute(f"pragma synchronous = {'full' if synced else 'normal'}")
        connection.execute("begin immediate")

    def begin_reading(self, connection: Connection) -> None:
        connection.execute("begin")

    def is_fault(self, error: BaseException) -> bool:
        return is_store_fault(error)

    def down(self, error: BaseException) -> StoreDown:
        return store_down(error, self.path)


def create_private(path: Path) -> None:
    """Make the file for its owner alone where it does not exist; SQLite gives its side files the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def connect_writing(path: Path) -> sqlite3.Connection:
    """A connection in write-ahead mode, transactions in our own hands.

    What is written without `begin_writing`, as the schema is, may be lost to a crash of the machine, but only whole
    transactions and the last ones; the next synced one makes all before it durable.
    """
    connection = _connect(path)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute(f"pragma journal_size_limit = {JOURNAL_SIZE_LIMIT}")
    return connection


def connect_reading(path: Path) -> sqlite3.Connection:
    """A connection that cannot write and never creates the file; may pass from thread to thread."""
    connection = _connect(path)
    connection.execute("pragma query_only = on")
    return connection


def connect_snapshot(path: Path, *, unchanging: bool) -> sqlite3.Connection:
    """A connection for a long look at a file; `unchanging` leaves no trace beside one that nobody can write to."""
    return _connect(path, "mode=ro&immutable=1" if unchanging else "mode=ro")


def _connect(path: Path, mode: str = "mode=rw") -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    return connection
