"""A call costs a fixed number of look-ups, however many calls and rollouts there are."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.record import bodies, call_rows, claims, collapse, delivery_rows, documents, prompts, rollout_rows
from proxy.record.connection import connect_writing, create_private
from proxy.record.migrations import migrate, read_migrations

# Indexes that hold open reservations and readings alone: reading all of them reads what is asked for.
OPEN = ("calls_on_lease", "deliveries_that_last")

STATEMENTS = [
    pytest.param(statement, id=f"{module.__name__.rsplit('.', 1)[1]}.{name}")
    for module in (bodies, call_rows, claims, collapse, delivery_rows, documents, prompts, rollout_rows)
    for name, statement in vars(module).items()
    if name.startswith("_")
    and not name.startswith("__")
    and isinstance(statement, str)
    and " where " in statement.replace("\n", " ")
]


class Nulls(dict[str, None]):
    """A value for any parameter."""

    def __missing__(self, name: str) -> None:
        return None


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    create_private(tmp_path / "store.db")
    with closing(connect_writing(tmp_path / "store.db")) as connection:
        migrate(connection, read_migrations())
        yield connection


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_reads_a_whole_table(db: sqlite3.Connection, statement: str) -> None:
    """Each one finds its rows by an index."""
    values = Nulls() if ":" in statement else (None,) * statement.count("?")
    plan = [row["detail"] for row in db.execute(f"explain query plan {statement}", values)]

    scans = [step for step in plan if step.startswith("SCAN") and "CONSTANT ROW" not in step]
    assert [step for step in scans if not any(index in step for index in OPEN)] == []
