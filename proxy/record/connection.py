"""How a store file is opened: one connection that writes, some that only read."""

import os
import sqlite3
from pathlib import Path

# Nobody but a person with a database tool can hold a lock for long; then callers are told rather than kept.
BUSY_TIMEOUT_S = 5.0
# A write-ahead log that a burst made large is cut back to this after the next checkpoint.
JOURNAL_SIZE_LIMIT = 64 * 2**20


def create_private(path: Path) -> None:
    """Make the file for its owner alone where it does not exist; SQLite gives its side files the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def connect_writing(path: Path) -> sqlite3.Connection:
    """A connection in write-ahead mode, transactions in our own hands."""
    connection = _connect(path)
    connection.execute("pragma journal_mode = wal")
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
