"""The writer thread: who shares a commit, who suffers from whom, and how it gets up again."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import Conflict, StoreDown
from proxy.record import connection
from proxy.record.connection import SqliteDatabase, connect_reading, connect_writing, create_private
from proxy.record.database import Connection
from proxy.record.writer import GROUP_SIZE, Durability, Writer

pytestmark = pytest.mark.anyio


class WatchedDatabase(SqliteDatabase):
    """A file with an empty table, and every statement that was run on it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.statements: list[str] = []
        self.opened = 0

    def connect_writing(self) -> Connection:
        self.opened += 1
        opened = connect_writing(self.path)
        opened.execute("create table if not exists notes (note text unique)")
        opened.set_trace_callback(self.statements.append)
        return opened


class Watched:
    """A writer on an empty table, with every statement that it ran."""

    def __init__(self, path: Path, durability: Durability = "fsync") -> None:
        self.path = path
        self.database = WatchedDatabase(path)
        self.writer = Writer(self.database, durability)

    @property
    def statements(self) -> list[str]:
        return self.database.statements

    @property
    def opened(self) -> int:
        return self.database.opened

    def count(self, statement: str) -> int:
        return self.statements.count(statement)

    def notes(self) -> list[str]:
        with closing(connect_reading(self.path)) as reading:
            return [row["note"] for row in reading.execute("select note from notes order by rowid")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_private(tmp_path / "store.db")
    return tmp_path / "store.db"


@pytest.fixture
async def watched(path: Path) -> AsyncIterator[Watched]:
    """A running writer."""
    made = Watched(path)
    made.writer.start()
    yield made
    await made.writer.stop()


def note(text: str) -> Callable[[Connection], None]:
    def work(db: Connection) -> None:
        db.execute("insert into notes values (?)", (text,))

    return work


async def together(writer: Writer, *works: Callable[[Connection], object], durable: bool = True) -> list[object]:
    """Results or errors of jobs that were all waiting when the writer came for the next group."""
    is_busy, gate = threading.Event(), threading.Event()

    def keeps_busy(db: Connection) -> None:
        is_busy.set()
        gate.wait()

    first = asyncio.create_task(writer.write(keeps_busy, durable=False))
    await asyncio.to_thread(is_busy.wait)
    rest = [asyncio.create_task(writer.write(work, durable=durable)) for work in works]
    await asyncio.sleep(0)  # each asks
    gate.set()
    await first
    return await asyncio.gather(*rest, return_exceptions=True)


async def test_what_is_waiting_shares_a_commit(watched: Watched) -> None:
    """One sync pays for a whole group, and a group has a limit."""
    await together(watched.writer, *(note(str(n)) for n in range(GROUP_SIZE + 50)))

    assert watched.count("commit") == 3
    assert len(watched.notes()) == GROUP_SIZE + 50


async def test_a_failing_job_leaves_its_neighbours_alone(watched: Watched) -> None:
    """Its own work is undone, theirs is kept."""

    def fails(db: Connection) -> None:
        note("undone")(db)
        raise Conflict("taken")

    results = await together(watched.writer, note("a"), fails, note("b"))

    assert [type(result) for result in results] == [type(None), Conflict, type(None)]
    assert watched.notes() == ["a", "b"]
    assert watched.opened == 1


async def test_a_broken_constraint_is_the_jobs_own_error(watched: Watched) -> None:
    """It says nothing about the store."""
    results = await together(watched.writer, note("a"), note("a"), note("b"))

    assert [type(result) for result in results] == [type(None), sqlite3.IntegrityError, type(None)]


async def test_a_result_is_told_only_after_its_commit(watched: Watched) -> None:
    """Another connection sees what was acknowledged."""
    await watched.writer.write(note("seen"), durable=False)

    assert watched.notes() == ["seen"]


async def test_a_job_whose_caller_left_is_done_all_the_same(watched: Watched) -> None:
    """A record is not lost because a client hung up."""
    gate = threading.Event()
    first = asyncio.create_task(watched.writer.write(lambda db: gate.wait(), durable=False))
    left = asyncio.create_task(watched.writer.write(note("kept"), durable=True))
    await asyncio.sleep(0)  # both ask
    left.cancel()
    gate.set()
    await first
    await watched.writer.write(note("next"), durable=True)

    assert left.cancelled()
    assert watched.notes() == ["kept", "next"]


async def test_what_is_queued_is_written_before_the_stop(watched: Watched) -> None:
    """Closing loses nothing that was asked for."""
    waiting = [asyncio.create_task(watched.writer.write(note(str(n)), durable=True)) for n in range(250)]
    await asyncio.sleep(0)
    await watched.writer.stop()
    await asyncio.gather(*waiting)

    assert len(watched.notes()) == 250


async def test_a_stopped_writer_says_so(watched: Watched) -> None:
    """Nobody waits for a thread that is gone."""
    await watched.writer.stop()

    with pytest.raises(StoreDown, match="not open"):
        await watched.writer.write(note("never"), durable=True)


async def test_only_durable_groups_are_synced(watched: Watched) -> None:
    """A reservation alone need not wait for the disk; beside a record it does."""
    await watched.writer.write(note("reservation"), durable=False)
    assert watched.count("pragma synchronous = full") == 0

    await watched.writer.write(note("record"), durable=True)
    await watched.writer.write(note("reservation 2"), durable=False)
    assert watched.count("pragma synchronous = full") == 1
    assert watched.count("pragma synchronous = normal") == 2


async def test_durability_wal_never_syncs(path: Path) -> None:
    """The setting trades a crash of the machine for speed."""
    watched = Watched(path, "wal")
    watched.writer.start()
    await watched.writer.write(note("record"), durable=True)
    await watched.writer.stop()

    assert watched.count("pragma synchronous = full") == 0


async def test_a_failing_store_fails_its_group_and_gets_up_again(watched: Watched) -> None:
    """Nothing of the group is acknowledged, and the next job runs on a fresh connection."""

    def breaks(db: Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    results = await together(watched.writer, note("a"), breaks, note("b"))
    await watched.writer.write(note("c"), durable=True)

    assert [type(result) for result in results] == [StoreDown] * 3
    assert all("disk I/O error" in str(result) and str(watched.path) in str(result) for result in results)
    assert watched.notes() == ["c"]
    assert watched.opened == 2


async def test_a_lock_from_outside_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone with a database tool in the file is told of, and waited out."""
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.05)
    watched = Watched(path)
    watched.writer.start()
    await watched.writer.write(note("before"), durable=True)
    with closing(connect_writing(path)) as outsider:
        outsider.execute("begin immediate")
        with pytest.raises(StoreDown, match="locked"):
            await watched.writer.write(note("during"), durable=True)
    await watched.writer.write(note("after"), durable=True)
    await watched.writer.stop()

    assert watched.notes() == ["before", "after"]
