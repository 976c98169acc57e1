"""Which call a prompt leans on, and what is remembered of it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.ids import pack_ids, unpack_ids
from proxy.model import Parent, Plan, RolloutId
from proxy.record.call_rows import record, reserve
from proxy.record.connection import connect_writing, create_private
from proxy.record.delivery_rows import end_delivery
from proxy.record.migrations import migrate, read_migrations
from proxy.record.prompts import TokenMemory, whole_ids
from proxy.record.rollout_rows import close_rollout, create_rollouts
from tests import make

QUESTION, ANSWER, MORE = make.user("a"), make.assistant("b"), make.user("c")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store's connection, with one rollout."""
    create_private(tmp_path / "store.db")
    with closing(connect_writing(tmp_path / "store.db")) as connection:
        migrate(connection, read_migrations())
        create_rollouts(connection, [make.rollout()], None, "")
        yield connection


def turn(db: sqlite3.Connection, *talk: dict[str, str], prompt: tuple[int, ...], **changes: object) -> Plan:
    """A recorded call with the given prompt."""
    body, delivery_id = changes.pop("body", None), changes.pop("delivery_id", "")
    planned = make.plan(make.ask(*talk, body=body), **changes)  # type: ignore[arg-type]
    reserve(db, make.reservation(planned, delivery_id=delivery_id))
    record(db, TokenMemory(), [make.call(planned, make.completion(prompt, (50, 51)))])
    return planned


def kept(db: sqlite3.Connection, planned: Plan) -> tuple[str | None, int, list[int]]:
    """Base, number of shared ids and the rest."""
    query = "select prompt_base_call_id, prompt_shared, prompt_ids from calls where call_id = ?"
    base, shared, rest = db.execute(query, (planned.call_id,)).fetchone()
    return base, shared, unpack_ids(rest)


def test_a_first_prompt_is_kept_whole(db: sqlite3.Connection) -> None:
    """There is nothing to lean on."""
    first = turn(db, QUESTION, prompt=(1, 2))

    assert kept(db, first) == (None, 0, [1, 2])


def test_a_next_prompt_leans_on_prompt_and_completion(db: sqlite3.Connection) -> None:
    """Only the new ids are kept."""
    first = turn(db, QUESTION, prompt=(1, 2))
    second = turn(db, QUESTION, ANSWER, MORE, prompt=(1, 2, 50, 51, 9))

    assert kept(db, second) == (first.call_id, 4, [9])


def test_the_parent_is_preferred_among_equals(db: sqlite3.Connection) -> None:
    """Its completion is the one that the prompt goes on from."""
    turn(db, QUESTION, prompt=(1, 2))
    chosen = turn(db, QUESTION, prompt=(1, 2))
    parent = Parent("resolved", "exact", chosen.call_id)
    second = turn(db, QUESTION, ANSWER, MORE, prompt=(1, 2, 50), parent=parent)

    assert kept(db, second)[0] == chosen.call_id


def test_the_longest_common_history_is_preferred(db: sqlite3.Connection) -> None:
    """The nearer call shares more."""
    turn(db, QUESTION, prompt=(1,))
    nearer = turn(db, QUESTION, ANSWER, MORE, prompt=(1, 2))
    third = turn(db, QUESTION, ANSWER, MORE, ANSWER, MORE, prompt=(1, 2, 3))

    assert kept(db, third)[0] == nearer.call_id


def test_repeated_draws_lean_on_the_first(db: sqlite3.Connection) -> None:
    """Not on one another, which would make a chain of them."""
    first = turn(db, QUESTION, prompt=(1, 2))
    draws = [turn(db, QUESTION, prompt=(1, 2)) for _ in range(3)]

    assert [kept(db, draw) for draw in draws] == [(first.call_id, 2, [])] * 3


def test_other_tools_make_another_chain(db: sqlite3.Connection) -> None:
    """They stand at the start of most prompts, so that little would be shared."""
    turn(db, QUESTION, prompt=(1, 2))
    other = turn(db, QUESTION, ANSWER, MORE, prompt=(1, 2, 3), body={"tools": [{}]})

    assert kept(db, other)[0] is None


def test_failed_calls_and_calls_without_ids_are_no_base(db: sqlite3.Connection) -> None:
    """Only what a client can go on from is leant on."""
    for outcome in (make.failure(partial=make.completion()), make.completion((), ())):
        planned = make.plan(make.ask(QUESTION))
        reserve(db, make.reservation(planned))
        record(db, TokenMemory(), [make.call(planned, outcome)])
    second = turn(db, QUESTION, ANSWER, MORE, prompt=(1, 2))

    assert kept(db, second)[0] is None


def test_another_rollouts_calls_are_no_base(db: sqlite3.Connection) -> None:
    """Deleting one rollout must not harm another."""
    turn(db, QUESTION, prompt=(1, 2))
    create_rollouts(db, [make.rollout("r2")], None, "")
    planned = make.plan(make.ask(QUESTION, of=make.rollout("r2")))
    reserve(db, make.reservation(planned))
    record(db, TokenMemory(), [make.call(planned)])

    assert kept(db, planned)[0] is None


def test_ids_are_whole_however_little_is_remembered(db: sqlite3.Connection) -> None:
    """Memory saves reads; it decides nothing."""
    talk = [QUESTION]
    prompt: tuple[int, ...] = (1,)
    for number in range(30):
        last = turn(db, *talk, prompt=prompt)
        talk, prompt = [*talk, ANSWER, MORE], (*prompt, 50, 51, number)

    for memory in (TokenMemory(0), TokenMemory(10), TokenMemory()):
        assert unpack_ids(whole_ids(db, memory, last.call_id)) == [*prompt[:-3], 50, 51]


def test_deleting_a_rollout_leaves_nothing_that_it_said(db: sqlite3.Connection) -> None:
    """Shared messages and deliveries go with the calls."""
    turn(db, QUESTION, prompt=(1, 2), delivery_id="d")
    end_delivery(db, make.delivery("d"))
    close_rollout(db, RolloutId("r1"), "deleted", make.STARTED_AT)

    for count in ("select count(*) from calls", "select count(*) from bodies", "select count(*) from deliveries"):
        assert db.execute(count).fetchone()[0] == 0


def test_memory_forgets_the_longest_unused() -> None:
    """And never holds more than its limit."""
    memory = TokenMemory(limit_ids=4)
    for name in ("a", "b"):
        memory.put(name, pack_ids((1, 2)))
    memory.get("a")
    memory.put("c", pack_ids((1, 2)))

    assert [memory.get(name) is not None for name in ("a", "b", "c")] == [True, False, True]


def test_memory_counts_a_replaced_entry_once() -> None:
    """A record that is tried again takes no more room."""
    memory = TokenMemory(limit_ids=4)
    for _ in range(5):
        memory.put("a", pack_ids((1, 2)))
    memory.put("b", pack_ids((1, 2)))

    assert memory.get("a") is not None
