"""What the SQLite store promises beyond the contract of every store: crashes, full disks, file modes, readers."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.errors import StoreDown
from proxy.ids import ID_BYTES
from proxy.model import RolloutId
from proxy.record.opening import open_reading
from proxy.record.sqlite import SqliteStore
from proxy.record.store import RolloutFilter, Store
from tests import make
from tests.record.killing import REPOSITORY, assert_kept, kill_amid_recording

TURNS = 200
ROOM_PER_CALL = 6100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def not_a_store(path: Path) -> Path:
    path.write_bytes(b"not a database, but long enough to look like one. " * 50)
    return path


@pytest.mark.anyio
async def test_it_is_a_store(path: Path) -> None:
    """The type checker agrees that the Protocol is met."""
    store: Store = SqliteStore(path)
    await store.open()
    await store.close()


@pytest.mark.anyio
async def test_every_acknowledged_record_survives_a_kill(path: Path) -> None:
    """A proxy that is killed amid its work has lost nothing that it had promised."""
    told = kill_amid_recording(f"sqlite:///{path}")
    store = SqliteStore(path)
    await store.open()

    counts = await assert_kept(store, told)
    assert {kind for count in counts for kind, _ in count.failures} <= {"proxy_died"}
    await store.close()


def test_a_full_disk_is_named_and_outlived(path: Path) -> None:
    """Records fail while there is no room and go through once there is, without a restart."""
    command = [sys.executable, "-m", "tests.record.full_disk", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    told = ran.stdout.splitlines()

    assert len(told) == 3
    assert all(line.startswith(f"down: store {path}: ") for line in told[:2])
    assert told[2] == "recorded: 200000"


@pytest.mark.anyio
async def test_a_dead_owners_reservations_are_settled_at_once(path: Path) -> None:
    """Whoever holds the lock knows that nobody else answers for them, whatever their leases say."""
    before = SqliteStore(path)
    await before.open()
    await before.create_rollouts([make.rollout()])
    planned = make.plan()
    await before.reserve(make.reservation(planned, lease_until=2e9))
    await before.close()
    after = SqliteStore(path)
    await after.open()

    document = await after.call(planned.call_id)
    assert document is not None
    assert document["failure"]["kind"] == "proxy_died"
    await after.close()


@pytest.mark.anyio
async def test_its_files_are_for_their_owner_alone(path: Path) -> None:
    """Conversations are nobody else's business."""
    store = SqliteStore(path)
    await store.open()
    await store.ping()

    files = list(path.parent.iterdir())
    assert {file.name for file in files} >= {"store.db", "store.db-wal", "store.db.lock"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    await store.close()


@pytest.mark.anyio
async def test_a_reader_sees_what_a_running_proxy_writes(path: Path) -> None:
    """Looking needs no lock."""
    store = SqliteStore(path)
    await store.open()
    reading = await open_reading(f"sqlite:///{path}")
    await store.create_rollouts([make.rollout()])

    assert await reading.rollout(RolloutId("r1")) == make.rollout()
    await store.close()
    assert len((await reading.rollouts(RolloutFilter(), None, 10)).items) == 1
    await reading.close()


@pytest.mark.anyio
async def test_a_reader_makes_no_file(path: Path) -> None:
    """A mistyped path is an error, not an empty store."""
    for _ in range(2):
        with pytest.raises(StoreDown, match="no such file"):
            await open_reading(f"sqlite:///{path}")


@pytest.mark.anyio
async def test_a_file_of_another_kind_is_refused(not_a_store: Path) -> None:
    """The error says which file, and the lock is let go."""
    for _ in range(2):
        with pytest.raises(StoreDown, match="not a database"):
            await SqliteStore(not_a_store).open()


@pytest.mark.anyio
async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A wrong path stops the start with one line."""
    with pytest.raises(StoreDown, match="nowhere"):
        await SqliteStore(tmp_path / "nowhere" / "store.db").open()


@pytest.mark.anyio
async def test_a_closed_store_is_down(path: Path) -> None:
    """Reads and writes alike."""
    store = SqliteStore(path)
    await store.open()
    await store.close()

    with pytest.raises(StoreDown, match="not open"):
        await store.ping()
    with pytest.raises(StoreDown, match="not open"):
        await store.rollout(RolloutId("r1"))


async def record_long_rollout(path: Path, turns: int) -> int:
    """Bytes that a rollout of growing prompts says, each of them once."""
    store = SqliteStore(path, "wal")
    await store.open()
    await store.create_rollouts([make.rollout()])
    talk, prompt = [make.user("x" * 2000)], tuple(range(1000))
    for turn in range(turns):
        planned = make.plan(make.ask(*talk, body={"tools": [{"schema": "y" * 5000}]}))
        await store.reserve(make.reservation(planned))
        await store.record([make.call(planned, make.completion(prompt, (turn,) * 20))])
        prompt += (turn,) * 20 + (3,) * 30
        talk += [make.assistant(f"{turn}" * 50), make.user(f"{turn}" * 50)]
    await store.close()
    return ID_BYTES * len(prompt) + len(json.dumps(talk))


@pytest.mark.anyio
async def test_a_long_rollout_costs_what_it_says_once(path: Path) -> None:
    """Turn 200 is not dearer than turn 2: per call there is a fixed sum beside what is new."""
    said = await record_long_rollout(path, TURNS)

    assert size_of(path) < said + TURNS * ROOM_PER_CALL


def size_of(path: Path) -> int:
    return path.stat().st_size
