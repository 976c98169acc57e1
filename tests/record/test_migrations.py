"""Files of older versions are brought up to date, files of newer ones are refused."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.model import CallId, RolloutId
from proxy.record.connection import connect_writing, create_private
from proxy.record.faults import StoreUnreadable
from proxy.record.migrations import Migration, migrate, missing, read_migrations
from proxy.record.opening import open_reading
from proxy.record.sqlite import SqliteStore
from proxy.request.conversation import read_conversation
from tests import make

OLD_FILES = sorted((Path(__file__).parent / "old").glob("*.sql"))
NEWER = Migration("9999_newer", "a later version's", "create table newer (x);")
BROKEN = Migration("9999_broken", "fails half way", "create table half (x); create table half (x);")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_private(tmp_path / "store.db")
    return tmp_path / "store.db"


def applied(path: Path, *migrations: Migration) -> None:
    with closing(connect_writing(path)) as connection:
        migrate(connection, [*read_migrations(), *migrations])


@pytest.fixture(params=OLD_FILES, ids=lambda dump: dump.stem)
def old(request: pytest.FixtureRequest, path: Path) -> Path:
    """A file as an older version left it, as dump.py made it then."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(request.param.read_text("utf-8"))
    return path


@pytest.mark.anyio
async def test_an_old_file_is_brought_up_to_date(old: Path) -> None:
    """Nothing that it holds is lost."""
    store = SqliteStore(old)
    await store.open()

    document = await store.call(CallId("call_b"))
    rollout = await store.rollout(RolloutId("r1"))
    assert document is not None
    assert document["prompt_token_ids"] == [*make.PROMPT, *make.ANSWER, make.END, 9]
    assert document["completion_token_ids"] == [*make.ANSWER, make.END]
    assert document["messages"] == [make.user(), make.assistant(), make.user("and 3+3?")]
    assert rollout is not None
    assert rollout.outcome == {"reward": 1}
    await store.close()


@pytest.mark.anyio
async def test_an_old_files_retried_set_is_whole(old: Path) -> None:
    """Choices, seeds, earlier failures and deliveries."""
    store = SqliteStore(old)
    await store.open()
    calls = (await store.calls(RolloutId("r1"), None, 10)).items[2:]

    assert [(call["request_id"], call["state"], call["seed"]["value"]) for call in calls] == [
        ("req_c", "done", make.seed_of(0, 0)),
        ("req_c", "done", make.seed_of(0, 1)),
    ]
    assert [[failure["kind"] for failure in call["earlier_failures"]] for call in calls] == [["engine_cut"]] * 2
    assert [[one["outcome"] for one in call["deliveries"]] for call in calls] == [["error_told", "delivered"]] * 2
    await store.close()


@pytest.mark.anyio
async def test_an_old_files_equal_replies_are_one(old: Path) -> None:
    """Where their records have a hash of their tokens; others are like no other, and never guessed between."""
    talk = read_conversation([make.user("Two, please"), make.assistant(), make.user()], {})
    store = SqliteStore(old)
    await store.open()
    found = (await store.find_parents(RolloutId("r1"), talk, [talk.history[1]])).candidates
    had_hash = (await store.call(found[0].call_id) or {})["tokens_hash"] is not None
    await store.close()

    assert [one.call_id for one in found] == ["call_c0", "call_c1"]
    assert (found[0].ids_hash == found[1].ids_hash) == had_hash


def test_there_is_an_old_file_for_every_step() -> None:
    """Each step leaves a file behind that all later ones must be able to read."""
    assert [dump.stem for dump in OLD_FILES] == [step.name for step in read_migrations()]


def test_every_step_says_why() -> None:
    """Its first line is a comment."""
    assert all(step.why.endswith((".", ":")) for step in read_migrations())


def test_migrating_twice_changes_nothing(path: Path) -> None:
    """A step is taken once."""
    applied(path)
    applied(path)

    with closing(connect_writing(path)) as connection:
        assert missing(connection, read_migrations()) == []


def test_a_later_step_is_added_to_an_old_file(path: Path) -> None:
    """Only what is missing is run."""
    applied(path)
    applied(path, NEWER)

    with closing(connect_writing(path)) as connection:
        assert connection.execute("select count(*) from newer").fetchone()[0] == 0


def test_a_broken_step_leaves_nothing_behind(path: Path) -> None:
    """A step is whole or was never taken."""
    with pytest.raises(sqlite3.OperationalError, match="half"):
        applied(path, BROKEN)

    with closing(connect_writing(path)) as connection:
        assert [step.name for step in missing(connection, [*read_migrations(), BROKEN])] == [BROKEN.name]
        assert not connection.execute("select 1 from sqlite_schema where name = 'half'").fetchone()


@pytest.mark.anyio
async def test_a_newer_file_is_refused(path: Path) -> None:
    """Writing to it could break what the newer version relies on."""
    applied(path, NEWER)

    with pytest.raises(StoreUnreadable, match="9999_newer"):
        await SqliteStore(path).open()


@pytest.mark.anyio
async def test_a_reader_does_not_migrate(path: Path) -> None:
    """It says what has to be done instead."""
    with pytest.raises(StoreUnreadable, match="older version"):
        await open_reading(f"sqlite:///{path}")
