"""psycopg made to look as the row modules want it: `?` and `:name` for values, rows by name, truth as 0 and 1."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import psycopg
from psycopg.adapt import Dumper
from psycopg.types.numeric import Int2Dumper

from proxy.errors import BadAsk
from proxy.record.database import Cursor, Values

# What follows links from call to call may be long, while its reader needs the first ones.
_LONG = "with recursive"
ROWS_AT_ONCE = 4
# How SQLite tells the values of a list, and how PostgreSQL does; both call the column `value`.
_EACH = re.compile(r"json_each\((:[a-z_]+)\)")
_ELEMENTS = r"json_array_elements_text(cast(\1 as json))"
# `::` would be a cast, and nothing that stands in quotes is a place for a value.
_PLACE = re.compile(r"'[^']*'|\?|(?<!:):([a-z_]+)")


class NamedRow(tuple[Any, ...]):
    """A row whose values are found by name and by place, as sqlite3.Row has it."""

    places: Mapping[str, int]

    def keys(self) -> Iterable[str]:
        return self.places.keys()

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.places[key] if isinstance(key, str) else key)


_STRANGE = (psycopg.errors.UntranslatableCharacter, psycopg.errors.InvalidTextRepresentation)

Opened: TypeAlias = psycopg.Connection[NamedRow]


class PostgresConnection:
    """One session. Where it was lost between transactions `begin` opens another; within one, that is the caller's."""

    def __init__(self, connect: Callable[[], Opened]) -> None:
        self._connect = connect
        self._opened = connect()

    def begin(self, sql: str) -> None:
        """Run the statements that begin a transaction."""
        try:
            self._opened.execute(sql.encode())
        except psycopg.OperationalError:
            if not self._opened.closed:
                raise
            self._opened = self._connect()
            self._opened.execute(sql.encode())

    def execute(self, sql: str, values: Values = (), /) -> Cursor:
        """Raises BadAsk for a text that PostgreSQL cannot hold."""
        try:
            if sql.lstrip().startswith(_LONG):
                return self._told_bit_by_bit(sql, values)
            return self._opened.execute(placed(sql), values or None, binary=bool(values))
        except psycopg.DataError as error:
            raise _refused(error) from None

    def _told_bit_by_bit(self, sql: str, values: Values) -> Cursor:
        """Rows are fetched as they are asked for, since the caller may soon have enough."""
        cursor = self._opened.cursor("long")
        cursor.itersize = ROWS_AT_ONCE
        return cursor.execute(placed(sql), values, binary=True)

    def executemany(self, sql: str, values: Iterable[Values], /) -> Cursor:
        cursor = self._opened.cursor()
        try:
            cursor.executemany(placed(sql), values)
        except psycopg.DataError as error:
            raise _refused(error) from None
        return cursor

    def close(self) -> None:
        self._opened.close()


def open_session(url: str, *settings: str, **options: Any) -> Opened:
    """A session in which transactions are in our own hands, with `settings` run first."""
    opened = psycopg.Connection[NamedRow].connect(url, autocommit=True, row_factory=_named, **options)
    opened.adapters.register_dumper(bool, _TruthDumper)
    for setting in settings:
        opened.execute(setting.encode())
    return opened


@lru_cache(maxsize=512)
def placed(sql: str) -> bytes:
    """A statement as psycopg wants it. No statement of ours holds a percent sign."""

    def mark(found: re.Match[str]) -> str:
        if found[0].startswith("'"):
            return found[0]
        return f"%({found[1]})s" if found[1] else "%s"

    return _PLACE.sub(mark, _EACH.sub(_ELEMENTS, sql)).encode()


class _TruthDumper(Dumper):
    """Truth as a small integer, which is what its columns are."""

    oid = Int2Dumper.oid

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


def _named(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], NamedRow]:
    places = {column.name: place for place, column in enumerate(cursor.description or ())}

    def named(values: Sequence[Any]) -> NamedRow:
        row = NamedRow(values)
        row.places = places
        return row

    return named


def _refused(error: psycopg.DataError) -> Exception:
    """PostgreSQL's texts hold every character but U+0000, and JSON that it is to read no half of a pair."""
    if "NUL" in str(error) or isinstance(error, _STRANGE):
        return BadAsk("a text holds a character that this store cannot keep")
    return error
