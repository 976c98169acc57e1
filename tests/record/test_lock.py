"""One process per store file."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.record.faults import StoreInUse, StoreLinked
from proxy.record.lock import FileLock
from proxy.record.sqlite import SqliteStore

HOLDER = """
import sys
from pathlib import Path
from proxy.record.lock import FileLock
lock = FileLock(Path(sys.argv[1]))
lock.take()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused(path: Path, holder: subprocess.Popen[str]) -> None:
    """It is told the file, the holder and the rule."""
    with pytest.raises(StoreInUse) as refused:
        FileLock(path).take()

    assert str(path) in refused.value.message
    assert f"process {holder.pid}" in refused.value.message
    assert "one process per SQLite file" in refused.value.message


def test_a_killed_holder_frees_the_file(path: Path, holder: subprocess.Popen[str]) -> None:
    """Nothing has to be cleaned up by hand."""
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    lock = FileLock(path)
    lock.take()
    lock.release()


def test_a_released_lock_can_be_taken_again(path: Path) -> None:
    """Also within one process."""
    for _ in range(2):
        lock = FileLock(path)
        lock.take()
        lock.release()


@pytest.mark.anyio
async def test_a_store_is_opened_once(path: Path) -> None:
    """The second one is refused and the first one goes on."""
    first = SqliteStore(path)
    await first.open()

    with pytest.raises(StoreInUse):
        await SqliteStore(path).open()
    await first.ping()
    await first.close()
    again = SqliteStore(path)
    await again.open()
    await again.close()


def test_a_file_with_a_second_name_is_refused_by_either(path: Path, tmp_path: Path) -> None:
    """A hard link would pass the lock, and SQLite's log would stand beside one of the names only."""
    other = tmp_path / "elsewhere" / "other.db"
    other.parent.mkdir()
    path.touch()
    other.hardlink_to(path)

    for name in (path, other):
        with pytest.raises(StoreLinked, match=r"one file under 2 names.*remove the others.*or copy"):
            FileLock(name).take()
    other.unlink()
    lock = FileLock(path)
    lock.take()
    lock.release()
