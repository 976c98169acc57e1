"""A store opened to be looked at, so that looking changes nothing: neither a file nor what stands beside it."""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

from proxy.errors import StoreDown
from proxy.record.connection import connect_snapshot
from proxy.record.database import Connection
from proxy.record.faults import StoreInUse, StoreUnreadable, store_down
from proxy.record.lock import FileLock, check_links
from proxy.record.migrations import missing, read_migrations
from proxy.store_url import is_postgres, sqlite_path


def opened(place: Path | str, *, beside: bool) -> AbstractContextManager[Connection]:
    """One snapshot of the store at a URL, or in a SQLite file; `beside` looks at a file that a proxy serves from, too.

    Raises StoreInUse where a proxy does and that was not asked for, StoreLinked for a file of several names,
    StoreUnreadable for a store of another version or
    for what is no store at all, StoreDown where it cannot be read.
    """
    if isinstance(place, str) and is_postgres(place):
        return opened_postgres(place)
    return opened_file(sqlite_path(place) if isinstance(place, str) else place, beside=beside)


@contextmanager
def opened_postgres(url: str) -> Iterator[Connection]:
    """One snapshot of a database, whoever writes to it."""
    from proxy.record.postgres import PostgresDatabase, check_version  # noqa: PLC0415  psycopg is an extra

    database = PostgresDatabase(url)
    try:
        with closing(database.connect_reading()) as connection:
            database.begin_reading(connection)
            check_version(connection, database.name)
            yield connection
    except database.error as error:
        raise database.down(error) from error


@contextmanager
def opened_file(path: Path, *, beside: bool) -> Iterator[Connection]:
    if not path.is_file():
        raise StoreDown(f"store {path}: no such file; name that of a store, or run this where its rollpin.toml is")
    check_links(path)
    with ExitStack() as held:
        is_ours = not beside and _held_back(path, held)
        try:
            connection = held.enter_context(closing(connect_snapshot(path, unchanging=is_ours)))
            connection.execute("begin")
            _check_version(connection, path)
            yield connection
        except sqlite3.DatabaseError as error:
            raise store_down(error, path) from error


def _held_back(path: Path, held: ExitStack) -> bool:
    """Keep proxies from the file for as long as it is looked at; whether none can be writing to it.

    A file without a lock beside it was never served from where it lies: it is a copy, and no lock is left there.
    """
    lock = Path(f"{path.resolve()}.lock")
    if lock.exists():
        taken = FileLock(path)
        try:
            taken.take()
        except StoreInUse as error:
            raise StoreInUse(f"{error.message}, or look at this one as it runs with --read-only") from error
        except OSError:
            return not has_log(path)
        held.callback(taken.release)
    return not has_log(path)


def has_log(path: Path) -> bool:
    """Whether the newest records are still in the write-ahead log."""
    log = Path(f"{path}-wal")
    return log.exists() and log.stat().st_size > 0


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StoreUnreadable unless this is a store of this very version."""
    try:
        behind = missing(connection, read_migrations())
    except sqlite3.DatabaseError as error:
        raise StoreUnreadable(f"{path} is no store: {error}; name the file of one") from error
    known = connection.execute("select 1 from sqlite_schema where name = 'schema_migrations'").fetchone()
    if known is None:
        raise StoreUnreadable(f"{path} is no store of Rollpin's: it has no list of migrations; name the file of one")
    if behind:
        names = ", ".join(step.name for step in behind)
        raise StoreUnreadable(
            f"store {path} is of an older version (it lacks {names}): start `rollpin serve` on it, or on a copy, once"
        )
