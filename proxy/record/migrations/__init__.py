"""The schema as a list of named steps; a file says which of them it has had.

Each step is one SQL file whose first comment says why it exists. Steps are only ever added.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from proxy import clock
from proxy.record.database import Connection
from proxy.record.faults import StoreUnreadable

_LEDGER = """
create table if not exists schema_migrations (name text primary key, applied_at text not null) strict
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    name: str
    why: str
    sql: str


def read_migrations(kind: str = "sqlite") -> tuple[Migration, ...]:
    """The steps for one kind of store, in order."""
    folder = files(__name__).joinpath(kind)
    steps = sorted((step for step in folder.iterdir() if step.name.endswith(".sql")), key=lambda s: s.name)
    return tuple(_read(step.name, step.read_text("utf-8")) for step in steps)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Bring a file up to date; raises StoreUnreadable where a newer program has been at it."""
    connection.execute(_LEDGER)
    for migration in missing(connection, migrations):
        _apply(connection, migration)


def missing(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> list[Migration]:
    """The steps that a file has not had yet."""
    return missing_of(_applied(connection), migrations)


def missing_of(applied: set[str], migrations: Sequence[Migration]) -> list[Migration]:
    """The steps that are not among those applied; raises StoreUnreadable where one of these is not known here."""
    if unknown := applied - {migration.name for migration in migrations}:
        raise StoreUnreadable(
            f"the store was written by a newer version (unknown migration {', '.join(sorted(unknown))}): "
            "use that version, or another store"
        )
    return [migration for migration in migrations if migration.name not in applied]


def stamp(connection: Connection, migration: Migration) -> None:
    """Note that a step was taken."""
    connection.execute("insert into schema_migrations values (?, ?)", (migration.name, clock.iso(clock.now())))


def _applied(connection: sqlite3.Connection) -> set[str]:
    if not connection.execute("select 1 from sqlite_schema where name = 'schema_migrations'").fetchone():
        return set()
    return {name for (name,) in connection.execute("select name from schema_migrations")}


def _read(file_name: str, sql: str) -> Migration:
    why = sql.partition("\n")[0].removeprefix("--").strip()
    return Migration(name=file_name.removesuffix(".sql"), why=why, sql=sql)


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    try:
        connection.executescript("begin immediate;\n" + migration.sql)
        stamp(connection, migration)
        connection.execute("commit")
    except sqlite3.Error:
        connection.rollback()
        raise
