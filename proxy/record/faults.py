"""What goes wrong with a store file, in words that name the file and the remedy."""

import sqlite3
from pathlib import Path

from proxy.errors import ProxyError, StoreDown

# Errors of one statement's own making: the job that ran it fails, its neighbours and the store do not.
_OF_THE_JOB = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    sqlite3.NotSupportedError,
)


class StoreInUse(ProxyError):
    """Another process holds the store; a SQLite file serves one."""

    status = 503
    code = "store_in_use"


class StoreLinked(ProxyError):
    """The store file has a second name, by which locks and the write-ahead log would be passed."""

    status = 503
    code = "store_linked"


class StoreUnreadable(ProxyError):
    """The store file is of another version of this program."""

    code = "store_version"


class ClocksApart(ProxyError):
    """This machine's clock is so far from the store's that leases would be told wrongly."""

    status = 503
    code = "clocks_apart"


def is_store_fault(error: BaseException) -> bool:
    """Whether the store failed, and not what one job asked of it."""
    if isinstance(error, sqlite3.Error):
        return not isinstance(error, _OF_THE_JOB)
    return isinstance(error, OSError | MemoryError)


def store_down(error: BaseException, path: Path) -> StoreDown:
    """The error as callers see it, with its cause."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        remedy = "make its folder one that this user may write to, or name another store"
        return StoreDown(f"store {path}: {error.strerror} ({error.filename}); {remedy}")
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    return StoreDown(f"store {path}: {error} ({name})")
