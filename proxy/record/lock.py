"""One process per store file: a lock that the kernel drops when its holder dies, however it dies."""

import fcntl
import os
from pathlib import Path

from proxy.record.faults import StoreInUse, StoreLinked


def check_links(store: Path) -> None:
    """Raise StoreLinked where the file has a second name: lock and write-ahead log stand beside one name alone.

    SQLite itself calls a database that is opened by two hard links damaged.
    """
    if store.exists() and (names := store.stat().st_nlink) > 1:
        raise StoreLinked(
            f"store {store} is one file under {names} names (hard links), which another process could serve from "
            f"unseen: remove the others (find / -samefile {store}), or copy the file"
        )


class FileLock:
    """An exclusive lock on `<store>.lock`; the file stays behind, since removing it would race."""

    def __init__(self, store: Path) -> None:
        self._store = store
        # Of the file itself: a symbolic link to it is not another store.
        self._path = Path(f"{store.resolve()}.lock")
        self._descriptor: int | None = None

    def take(self) -> None:
        """Hold the lock until release; raises StoreInUse where another holds it, StoreLinked where locks are vain."""
        check_links(self._store)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreInUse(
                f"store {self._store} is in use by process {holder}: use one process per SQLite file, "
                "so stop that one or name another store"
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Let the next process in."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
