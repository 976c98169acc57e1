"""What the store asks of a database: rows by name, one writer at a time, snapshots to read from.

The `*_rows` modules speak SQL that every kind understands, with `?` and `:name` for values; sqlite3's own connection
fulfils `Connection` as it is. A lasting difference between kinds belongs into a `Database`, not into a row module.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from proxy.errors import StoreDown

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Row(Protocol):
    """Values by the names of their columns, and by their places."""

    def keys(self) -> Iterable[str]: ...

    def __getitem__(self, key: str, /) -> Any: ...


class Cursor(Protocol):
    """What came of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def close(self) -> None: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __next__(self) -> Any: ...


class Connection(Protocol):
    """Runs statements; transactions are begun and ended by statements too."""

    def execute(self, sql: str, values: Values = ..., /) -> Cursor: ...

    def executemany(self, sql: str, values: Iterable[Values], /) -> Cursor: ...

    def close(self) -> None: ...


class Database(Protocol):
    """One database, and how it is written to and read from."""

    @property
    def name(self) -> str:
        """As people are told of it; holds no secret."""

    @property
    def error(self) -> type[Exception]:
        """What everything is that its driver raises."""

    def connect_writing(self) -> Connection:
        """A connection to write with, transactions in our own hands."""

    def connect_reading(self) -> Connection:
        """A connection that cannot write; may pass from thread to thread."""

    def begin_writing(self, connection: Connection, *, synced: bool) -> None:
        """Begin a transaction that no other writer's overlaps; `synced` ones survive a crash of the machine."""

    def begin_reading(self, connection: Connection) -> None:
        """Begin a look at one snapshot."""

    def is_fault(self, error: BaseException) -> bool:
        """Whether the database failed, and not what one job asked of it."""

    def down(self, error: BaseException) -> StoreDown:
        """The error as callers see it, with its cause."""
