"""What verification finds: nothing in a store that a proxy wrote, and every kind of harm done to one."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import StoreDown
from proxy.ids import pack_ids
from proxy.record.faults import StoreInUse, StoreLinked, StoreUnreadable
from proxy.verify.faults import REMEDIES
from proxy.verify.opening import opened
from proxy.verify.story import Looking, verify_store
from tests.fakes import FakeEngine
from tests.served import served, settings_for
from tests.verify.conftest import Harm, verified

FIRST = "(select min(number) from calls where rollout_id = 'a')"
LATER = "(select number from calls where rollout_id = 'a' and prompt_base_call_id is not null order by seq limit 1)"


def test_a_store_that_a_proxy_wrote_has_no_fault(store: Path) -> None:
    """Everything in it was looked at, and every seed minted again."""
    report = verified(store)

    assert report.faults == []
    assert (report.rollouts, report.calls, report.unended, report.unseeded) == (3, 17, 0, 0)
    assert report.tokens > 50


def test_looking_leaves_no_trace(store: Path) -> None:
    """Neither in the file nor beside it, though the store was written in write-ahead mode."""
    before = store.read_bytes()
    verified(store)

    assert store.read_bytes() == before
    assert [path.name for path in store.parent.iterdir()] == ["copy.db"]


def test_a_copy_in_a_folder_that_cannot_be_written_to_can_be_looked_at(store: Path) -> None:
    """As a backup may lie."""
    store.chmod(0o400)
    store.parent.chmod(0o500)
    try:
        assert verified(store).faults == []
    finally:
        store.parent.chmod(0o700)


HARM = {
    "sampled ids": (
        "update calls set completion_ids = zeroblob(length(completion_ids)) where number = " + FIRST,
        (),
        {"tokens"},
    ),
    "fewer sampled ids": (
        "update calls set completion_ids = ? where number = (select max(number) from calls where rollout_id = 'a')",
        (pack_ids([1, 2, 3]),),
        {"tokens", "segments"},
    ),
    "a hash of equal replies": (
        "update calls set ids_hash = (select max(ids_hash) from calls where number <> "
        + FIRST
        + ") where number = "
        + FIRST,
        (),
        {"tokens"},
    ),
    "a logprob": ("update calls set logprobs = substr(logprobs, 1, 5) where number = " + FIRST, (), {"tokens"}),
    "a seed": ("update calls set seed = seed + 1 where number = " + FIRST, (), {"seeds"}),
    "a sample's place": ("update rollouts set sample = 7 where rollout_id = 'a'", (), {"seeds"}),
    "a context": (
        "update calls set context = 'sha256:' || substr(context, 8, 60) || 'beef' where number = " + FIRST,
        (),
        {"contexts", "seeds"},
    ),
    "a message": ("update bodies set body = replace(body, 'hello', 'hallo') where body like '%hello%'", (), {"bodies"}),
    "a lost body": ("delete from bodies where body like '%three%'", (), {"bodies"}),
    "a lost call": ("delete from calls where number = " + FIRST, (), {"numbers", "prompts", "deliveries", "parents"}),
    "a lost delivery": (
        "delete from deliveries where call_id = (select call_id from calls where number = " + FIRST + ")",
        (),
        {"deliveries"},
    ),
    "a prompt's base": (
        "update calls set prompt_base_call_id = 'ca_nobody' where number = " + LATER,
        (),
        {"prompts"},
    ),
    "a prompt that leans on itself": (
        "update calls set prompt_base_call_id = call_id where number = " + LATER,
        (),
        {"prompts"},
    ),
    "a shared length": ("update calls set prompt_shared = 100000 where number = " + LATER, (), {"prompts"}),
    "a count": ("update calls set prompt_tokens = prompt_tokens + 1 where number = " + FIRST, (), {"prompts"}),
    "a document": ("update calls set document = '[' where number = " + FIRST, (), {"documents"}),
    "no document": ("update calls set document = null where number = " + FIRST, (), {"documents"}),
    "segments": (
        "update calls set document = json_set(document, '$.segments[0].end', 2) where number = " + FIRST,
        (),
        {"segments"},
    ),
    "a segment's seed": (
        "update calls set document = json_set(document, '$.segments[0].seed', 5) where number = " + FIRST,
        (),
        {"seeds"},
    ),
    "an id beyond the vocabulary": (
        "update calls set document = json_set(document, '$.engine.vocabulary', 5) where number = " + FIRST,
        (),
        {"tokens"},
    ),
    "a parent": ("update calls set parent_call_id = 'ca_nobody' where number = " + LATER, (), {"parents"}),
    "an occurrence": (
        "update calls set occurrence = 5 where rollout_id = 'b' and occurrence = 1",
        (),
        {"numbers", "seeds"},
    ),
    "a stray call": ("update calls set rollout_id = 'nowhere' where rollout_id = 'b' and seq = 0", (), {"rollouts"}),
    "a call of a deleted rollout": ("update rollouts set state = 'deleted' where rollout_id = 'b'", (), {"rollouts"}),
}


@pytest.mark.parametrize("name", HARM)
def test_harm_is_found_and_named(store: Path, harm: Harm, name: str) -> None:
    """By its check, with the call or the rollout that it was done to, and with a remedy."""
    statement, values, checks = HARM[name]
    harm(statement, *values)
    faults = verified(store).faults

    assert checks & {fault.check for fault in faults}, faults
    assert all(fault.remedy == REMEDIES[fault.check] for fault in faults)
    assert any(fault.call_id or fault.rollout_id for fault in faults)


def test_bytes_that_rot_are_found(store: Path) -> None:
    """By SQLite's own check, before anything else is believed, or because it cannot read the file at all."""
    pages = bytearray(store.read_bytes())
    pages[4096 * 3 : 4096 * 4] = b"\0" * 4096
    store.write_bytes(pages)

    assert set(told_of(store)) <= {"file", f"store {store}: database disk image is malformed (SQLITE_CORRUPT)"}


def told_of(store: Path) -> list[str]:
    """Checks with a fault, or why the store cannot be looked at."""
    try:
        return [fault.check for fault in verified(store).faults] or ["no fault"]
    except StoreDown as error:
        return [error.message]


def test_seeds_of_records_without_a_run_seed_need_one(store: Path, harm: Harm) -> None:
    """It is given, and then a wrong one is found out."""
    harm("update calls set document = json_remove(document, '$.seed.run_seed') where document is not null")

    assert verified(store).unseeded == 17
    assert verified(store, run_seed=7).faults == []
    assert {fault.check for fault in verified(store, run_seed=8).faults} == {"seeds"}


def test_a_store_in_use_is_refused_unless_it_is_only_looked_at(tmp_path: Path) -> None:
    """The one who serves from it is named, and so is the way to look all the same."""
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        client.chat("hello")
        client.calls()
        with pytest.raises(StoreInUse, match=r"in use by process \d+.*--read-only"):
            verified(tmp_path / "rollpin.db")
        report = verify_store(tmp_path / "rollpin.db", Looking(), beside=True)

    assert (report.calls, report.faults) == (1, [])
    assert verified(tmp_path / "rollpin.db").faults == [], "free again once the proxy has gone"


def test_a_store_of_two_names_is_not_looked_at(store: Path, tmp_path: Path) -> None:
    """By the one that nobody serves from the newest records would be missing, and nothing would say so."""
    other = tmp_path / "other.db"
    other.hardlink_to(store)

    for beside in (False, True):
        with pytest.raises(StoreLinked):
            verify_store(other, Looking(), beside=beside)


def test_the_newest_records_in_the_log_are_looked_at_too(tmp_path: Path) -> None:
    """A proxy that was killed leaves them there."""
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        client.chat("hello")
        client.calls()
        (tmp_path / "killed").mkdir()
        for name in ("rollpin.db", "rollpin.db-wal"):
            shutil.copy(tmp_path / name, tmp_path / "killed" / name)

    assert verified(tmp_path / "killed" / "rollpin.db").calls == 1


def test_what_is_no_store_of_this_version_is_refused(tmp_path: Path, store: Path) -> None:
    """Nothing is guessed from it."""
    (tmp_path / "text.db").write_text("not a database at all, but long enough to be taken for one" * 20)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("create table calls (number)")
    with closing(sqlite3.connect(store)) as newer, newer:
        newer.execute("insert into schema_migrations values ('9999_later', 'x')")

    for name, kind, told in (
        ("nothing.db", StoreDown, "no such file"),
        ("text.db", StoreUnreadable, "is no store"),
        ("other.db", StoreUnreadable, "no store of Rollpin's"),
        ("copy.db", StoreUnreadable, "newer version"),
    ):
        with pytest.raises(kind, match=told), opened(tmp_path / name, beside=False):
            pass


def test_an_older_store_says_how_it_is_brought_up_to_date(tmp_path: Path) -> None:
    """It is not migrated by looking."""
    dump = Path(__file__).parents[1] / "record" / "old" / "0001_first.sql"
    with closing(sqlite3.connect(tmp_path / "old.db")) as old:
        old.executescript(dump.read_text())

    with pytest.raises(StoreUnreadable, match="older version"), opened(tmp_path / "old.db", beside=False):
        pass


def test_every_fault_can_be_told_as_json(store: Path, harm: Harm) -> None:
    """For whoever goes through them by program."""
    from proxy.commands.verify import report_document

    harm("update calls set seed = seed + 1 where number = " + FIRST)
    document = report_document(verified(store))

    assert json.loads(json.dumps(document)) == document
    assert document["faults"]
