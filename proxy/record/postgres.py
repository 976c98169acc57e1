"""The store in a PostgreSQL database, for any number of proxy processes at once.

Writers of all processes take turns: each group of writes first takes one lock of the whole store, as `begin immediate`
does with a file. So everything that holds of one writer (occurrences without gaps, claims, limits) holds of all, and a
group pays for the lock once. Reads need no lock and see one snapshot each.
"""

import asyncio
from contextlib import closing
from functools import partial
from typing import Any

import psycopg

from proxy import clock
from proxy.errors import StoreDown
from proxy.model import Claimed, Reservation, Reserved
from proxy.record import call_rows, weight_rows
from proxy.record.clocks import read_lead_s, refuse_if_apart
from proxy.record.database import Connection
from proxy.record.faults import StoreUnreadable
from proxy.record.migrations import missing_of, read_migrations, stamp
from proxy.record.postgres_connection import Opened, PostgresConnection, open_session, placed
from proxy.record.postgres_hold import Hold, Session
from proxy.record.postgres_presence import HOLD, other_readers, others, part_with_dead
from proxy.record.row_store import RowStore, StoreReading
from proxy.record.writer import Durability
from proxy.store_url import MASK, shown_store_url, store_secrets

# Whoever holds the store's lock works in milliseconds; one that stands still is cut off by the server, and until then
# the others are told rather than kept.
LOCK_TIMEOUT_S = 5
STANDSTILL_S = 15
CONNECT_TIMEOUT_S = 5
# A server that vanished without a word is noticed after this.
SILENCE_S = 15

_OPTIONS = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "tcp_user_timeout": SILENCE_S * 1000,
    "keepalives_idle": SILENCE_S,
    "fallback_application_name": "rollpin",
}
# Every statement has its index; plans that were made while the tables were empty must not forget it.
_BY_INDEX = "set enable_seqscan = off"
_WRITING = (
    _BY_INDEX,
    f"set lock_timeout = '{LOCK_TIMEOUT_S}s'",
    f"set idle_in_transaction_session_timeout = '{STANDSTILL_S}s'",
    "set client_min_messages = warning",
)
# Its holder has nothing to say for as long as it lives; that it has vanished is to be seen soon, by either side.
_HOLDING = (
    "set idle_session_timeout = 0",
    f"set tcp_keepalives_idle = {SILENCE_S}",
    "set tcp_keepalives_interval = 5",
    "set tcp_keepalives_count = 3",
)
_OPTIONS_HOLDING: dict[str, Any] = {**_OPTIONS, "fallback_application_name": "rollpin-presence"}
_READING = (_BY_INDEX, "set default_transaction_read_only = on")
# One lock for each schema, since each may hold a store of its own.
_LOCK = "select pg_advisory_xact_lock(hashtext('rollpin'), hashtext(current_schema()))"
_LEDGER = "create table if not exists schema_migrations (name text primary key, applied_at text not null)"
_HAS_LEDGER = "select to_regclass('schema_migrations') is not null as is_there"


# Errors of one statement's own making: the job that ran it fails, its neighbours and the store do not.
_OF_THE_JOB = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.ProgramLimitExceeded)


class PostgresDatabase:
    """A database by its URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.process = ""
        """The process that lives for as long as one of its sessions holds its lock."""

    @property
    def name(self) -> str:
        return shown_store_url(self._url)

    @property
    def error(self) -> type[Exception]:
        return psycopg.Error

    def connect_writing(self) -> PostgresConnection:
        return PostgresConnection(self._open_to_write)

    def connect_reading(self) -> PostgresConnection:
        return PostgresConnection(partial(open_session, self._url, *_READING, **_OPTIONS))

    def begin_writing(self, connection: Connection, *, synced: bool) -> None:
        assert isinstance(connection, PostgresConnection)  # noqa: S101  it is one of ours
        connection.begin(f"begin; set local synchronous_commit = {'on' if synced else 'off'}; {_LOCK}")

    def begin_reading(self, connection: Connection) -> None:
        assert isinstance(connection, PostgresConnection)  # noqa: S101  it is one of ours
        connection.begin("begin isolation level repeatable read read only")

    def is_fault(self, error: BaseException) -> bool:
        if isinstance(error, psycopg.Error):
            return not isinstance(error, _OF_THE_JOB)
        return isinstance(error, OSError | MemoryError)

    def down(self, error: BaseException) -> StoreDown:
        return StoreDown(f"store {self.name}: {self._told(str(error))} ({type(error).__name__})")

    async def open_to_hold(self) -> Session:
        """A session that shows that the process lives, and does nothing else."""
        opened = await psycopg.AsyncConnection.connect(self._url, autocommit=True, **_OPTIONS_HOLDING)
        try:
            for setting in _HOLDING:
                await opened.execute(setting.encode())
            await opened.execute(placed(HOLD), (self.process,))
        except BaseException:
            await opened.close()
            raise
        return opened

    def _open_to_write(self) -> Opened:
        opened = open_session(self._url, *_WRITING, **_OPTIONS)
        if self.process:
            opened.execute(placed(HOLD), (self.process,))
        return opened

    def _told(self, text: str) -> str:
        """What the driver says; it may repeat a part of a URL that it could not read."""
        for secret in store_secrets(self._url):
            text = text.replace(secret, MASK)
        return " ".join(text.split())


class PostgresReading(StoreReading):
    """A database that is only looked at, also while proxies serve from it."""

    def __init__(self, url: str) -> None:
        self._postgres = PostgresDatabase(url)
        super().__init__(self._postgres)

    def _check(self) -> None:
        with closing(self._postgres.connect_reading()) as connection:
            check_version(connection, self.name)


class PostgresStore(RowStore):
    """The whole store: a Store by its Protocol. Nobody owns it; who died is known by its sessions, or by its leases."""

    is_shared = True

    def __init__(self, url: str, durability: Durability = "fsync") -> None:
        self._postgres = PostgresDatabase(url)
        super().__init__(self._postgres, durability)
        self._hold = Hold(self._postgres.open_to_hold)

    async def open(self) -> None:
        """Bring the schema up to date, and account for what dead processes left."""
        try:
            await asyncio.to_thread(self._bring_up_to_date)
            self._writer.start()
            self._reader.start()
            await self._writer.write(lambda db: _sweep(db, "", clock.now()), durable=True)
        except (psycopg.Error, OSError) as error:
            await self.close()
            raise self._postgres.down(error) from error
        except BaseException:
            await self.close()
            raise

    async def stay_alive(self, owner: str, until: float, now: float) -> None:
        is_known = self._postgres.process == owner
        self._postgres.process = owner
        try:
            await self._hold.begin()
        except psycopg.Error as error:
            raise self._postgres.down(error) from error
        await self._writer.write(lambda db: _stay_alive(db, owner, until, now, is_known=is_known), durable=False)

    async def close(self) -> None:
        await self._hold.end()
        await super().close()

    async def clock_lead_s(self) -> float:
        return await self._reader.read(read_lead_s)

    async def reserve(self, reservation: Reservation) -> Reserved | Claimed:
        return await self._writer.write(lambda db: _reserve(db, reservation), durable=False)

    async def sweep(self, now: float) -> int:
        return await self._writer.write(lambda db: _sweep(db, self._postgres.process, now), durable=True)

    def _bring_up_to_date(self) -> None:
        """All steps or none, and one process at a time."""
        with closing(self._postgres.connect_writing()) as connection:
            _check_encoding(connection, self.name)
            refuse_if_apart(connection)
            # Whoever takes the steps may need longer than any other writer; one that has died is cut off.
            connection.execute("set lock_timeout = 0")
            self._postgres.begin_writing(connection, synced=True)
            if steps := missing_of(applied_steps(connection), read_migrations("postgres")):
                connection.execute(_LEDGER)
            for step in steps:
                connection.execute(step.sql)
                stamp(connection, step)
            connection.execute("commit")


def check_version(connection: Connection, name: str) -> None:
    """Raise StoreUnreadable unless a store of this very version is there."""
    if steps := missing_of(applied_steps(connection), read_migrations("postgres")):
        lacks = ", ".join(step.name for step in steps)
        raise StoreUnreadable(
            f"store {name} is of an older version, or none (it lacks {lacks}): start `rollpin serve` on it once"
        )


def applied_steps(connection: Connection) -> set[str]:
    """The names of the steps that a database has had."""
    if not connection.execute(_HAS_LEDGER).fetchone()["is_there"]:
        return set()
    return {row["name"] for row in connection.execute("select name from schema_migrations")}


def _stay_alive(connection: Connection, owner: str, until: float, now: float, *, is_known: bool) -> None:
    if not is_known:
        connection.execute(HOLD, (owner,))
    weight_rows.stay_alive(connection, owner, until, now)


def _reserve(connection: Connection, asked: Reservation) -> Reserved | Claimed:
    """Who reads an identical request's reply from a dead process has lost it: this may be its retry."""
    part_with_dead(connection, other_readers(connection, asked), asked.asked_at)
    return call_rows.reserve(connection, asked)


def _sweep(connection: Connection, owner: str, now: float) -> int:
    """Account for the dead, and for those whose leases and signs of life lapsed."""
    given_up = part_with_dead(connection, others(connection, owner), now)
    weight_rows.part_with_silent(connection, now)
    return given_up + call_rows.sweep(connection, now)


def _check_encoding(connection: Connection, name: str) -> None:
    encoding = connection.execute("show server_encoding").fetchone()["server_encoding"]
    if encoding != "UTF8":
        raise StoreUnreadable(f"store {name} keeps texts as {encoding}: make its database with encoding UTF8")
