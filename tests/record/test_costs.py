"""A call costs a fixed number of look-ups, however many calls and rollouts there are."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from proxy.ids import unpack_ids
from proxy.model import JsonObject, Parent, Plan
from proxy.record import (
    bodies,
    call_rows,
    claims,
    collapse,
    delivery_rows,
    documents,
    parent_rows,
    prompts,
    rollout_rows,
)
from proxy.record.connection import connect_writing, create_private
from proxy.record.migrations import migrate, read_migrations
from proxy.record.parent_rows import find_parents, read_sampled_turn
from proxy.record.prompts import TokenMemory, whole_ids
from proxy.request.parent import echoed_call_ids, echoes, resolve_parent
from tests import make

# Indexes that hold open reservations and readings alone: reading all of them reads what is asked for.
OPEN = ("calls_on_lease", "deliveries_that_last")
# What a statement makes itself: a list that it was given, or rows that it found by an index.
OWN = ("CONSTANT ROW", "VIRTUAL TABLE", "SCAN chain")

STATEMENTS = [
    pytest.param(statement, id=f"{module.__name__.rsplit('.', 1)[1]}.{name}")
    for module in (bodies, call_rows, claims, collapse, delivery_rows, documents, parent_rows, prompts, rollout_rows)
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
        rollout_rows.create_rollouts(connection, [make.rollout()], None, "")
        yield connection


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_reads_a_whole_table(db: sqlite3.Connection, statement: str) -> None:
    """Each one finds its rows by an index."""
    values = Nulls() if ":" in statement else (None,) * statement.count("?")
    plan = [row["detail"] for row in db.execute(f"explain query plan {statement}", values)]

    scans = [step for step in plan if step.startswith("SCAN") and not any(own in step for own in OWN)]
    assert [step for step in scans if not any(index in step for index in OPEN)] == []


@pytest.mark.parametrize("statement", [parent_rows._SEARCH, prompts._BASE_BY_HISTORY])
def test_a_history_is_looked_up_among_its_own_calls(db: sqlite3.Connection, statement: str) -> None:
    """However many other calls the rollout has."""
    values = Nulls() if ":" in statement else (None,) * statement.count("?")
    plan = [row["detail"] for row in db.execute(f"explain query plan {statement}", values)]

    searches = [step for step in plan if step.startswith("SEARCH calls")]
    assert searches
    assert all("rollout_id=? AND history=?" in step for step in searches)


@pytest.mark.parametrize("messages", [3, 401])
def test_a_parent_is_found_by_one_statement(db: sqlite3.Connection, messages: int) -> None:
    """However long the conversation, however many replies mean the same, and whatever ids of calls it echoes."""
    talk = conversation(messages)
    first, *_ = [turn(db, talk[:-2]) for _ in range(3)]
    ask = make.ask(*talk)
    boundaries = [echo.history for echo in echoes(ask)]
    with statements(db) as made:
        search = find_parents(db, ask.identity.rollout_id, ask.conversation, boundaries, echoed_call_ids(ask))

    assert len(made) == 1
    assert resolve_parent(ask, search).call_id == first.call_id
    assert search.engine_call_ids == {f"call-{messages - 2}": f"engine-call-{messages - 2}"}


@pytest.mark.parametrize("turns", [2, 200])
def test_ids_are_read_by_one_statement(db: sqlite3.Connection, turns: int) -> None:
    """However long the chain of calls that a prompt leans on, as after a restart, which remembers none of them."""
    talk, prompt = conversation(2 * turns), (1,)
    for number in range(turns):
        last = turn(db, talk[: 2 * number + 1], prompt)
        prompt = (*prompt, *make.ANSWER, number)
    with statements(db) as made:
        ids = whole_ids(db, TokenMemory(), last.call_id)

    assert len(made) == 1
    assert unpack_ids(ids) == [*prompt[:-3], *make.ANSWER]


def test_a_call_costs_the_same_statements_however_long_its_rollout(db: sqlite3.Connection) -> None:
    """From the search for its parent to its record, by a process that remembers nothing."""
    talk, prompt, costs = conversation(401), make.PROMPT, list[int]()
    for length in range(1, 402, 2):
        with statements(db) as made:
            parent = parent_of(db, talk[:length])
            turn(db, talk[:length], prompt, parent=parent)
        prompt = (*prompt, *make.ANSWER, length)
        costs.append(len(made))

    assert parent.reason == "one_match"
    assert len(set(costs[1:])) == 1


def parent_of(db: sqlite3.Connection, talk: Sequence[JsonObject]) -> Parent:
    """What the request goes on from; its tokens are read as for an exact prefix."""
    ask = make.ask(*talk)
    boundaries = [echo.history for echo in echoes(ask)]
    rollout_id = ask.identity.rollout_id
    parent = resolve_parent(ask, find_parents(db, rollout_id, ask.conversation, boundaries, echoed_call_ids(ask)))
    if parent.call_id:
        assert read_sampled_turn(db, TokenMemory(), rollout_id, parent.call_id)
    return parent


def conversation(messages: int) -> list[JsonObject]:
    """A user's turns and replies that call a tool each."""
    return [called(number) if number % 2 else make.user(str(number)) for number in range(messages)]


def called(number: int) -> JsonObject:
    call = {"id": f"call-{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return make.assistant() | {"tool_calls": [call]}


def turn(
    db: sqlite3.Connection, talk: Sequence[JsonObject], prompt: Sequence[int] = make.PROMPT, **changes: object
) -> Plan:
    """A recorded call, answered by the conversation's next message."""
    planned = make.plan(make.ask(*talk), **changes)
    said = called(len(talk))
    meant = said | {"tool_calls": [call | {"id": f"engine-{call['id']}"} for call in said["tool_calls"]]}
    completion = make.completion(prompt, make.ANSWER, message=said, engine_message=meant)
    call_rows.reserve(db, make.reservation(planned))
    call_rows.record(db, TokenMemory(), [make.call(planned, completion)])
    return planned


@contextmanager
def statements(db: sqlite3.Connection) -> Iterator[list[str]]:
    """Every statement that is made within."""
    made = list[str]()
    db.set_trace_callback(made.append)
    yield made
    db.set_trace_callback(None)
