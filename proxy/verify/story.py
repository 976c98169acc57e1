"""Verification from the file to the trajectories, rollout by rollout."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from proxy.model import JsonObject, RolloutId
from proxy.record.database import Connection
from proxy.record.documents import read_calls
from proxy.record.rollout_rows import read_rollout
from proxy.trajectory.assemble import assemble_calls
from proxy.trajectory.call_facts import CallFacts
from proxy.trajectory.call_facts import read_calls as read_facts
from proxy.trajectory.rules import TrajectoryRules
from proxy.verify.calls import Known, check_call
from proxy.verify.faults import Fault
from proxy.verify.laws import broken_laws
from proxy.verify.opening import opened
from proxy.verify.rows import Book, check_rows, read_book

CALLS_A_PAGE = 1000
# What a broken row can make of the code that reads it; each becomes a fault.
UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError, sqlite3.Error)

_STRAYS = "select call_id, rollout_id from calls where rollout_id not in (select rollout_id from rollouts)"
_STRAY_DELIVERIES = "select distinct call_id from deliveries where call_id not in (select call_id from calls)"


@dataclass(frozen=True, slots=True)
class Looking:
    """What to look for, and whom to tell how far it is."""

    run_seed: int | None = None
    """Root of seeds where neither a record nor the store names one."""
    tell: Callable[[int, int], None] = lambda _done, _all: None
    """Rollouts looked at, and there are."""
    also: Callable[[JsonObject], Iterable[Fault]] = lambda _call: ()
    """A further check of each call, such as the seed audit."""


@dataclass(slots=True)
class Report:
    """What was looked at, and what is wrong with it."""

    rollouts: int = 0
    calls: int = 0
    tokens: int = 0
    unended: int = 0
    """Calls without an outcome: running now, or left by a proxy that died."""
    unseeded: int = 0
    """Calls whose seed could not be minted again, since their run seed is not known."""
    faults: list[Fault] = field(default_factory=list)


def verify_store(place: Path | str, looking: Looking, *, beside: bool = False) -> Report:
    """Everything that is wrong with a store. Raises StoreInUse, StoreUnreadable and StoreDown: see `opened`."""
    report = Report()
    with opened(place, beside=beside) as connection:
        if isinstance(connection, sqlite3.Connection):
            report.faults += _check_file(connection)
        if report.faults:
            return report
        run_seed = _kept_run_seed(connection) if looking.run_seed is None else looking.run_seed
        rollouts = connection.execute("select * from rollouts order by number").fetchall()
        for done, rollout in enumerate(rollouts):
            looking.tell(done, len(rollouts))
            report.rollouts += 1
            report.faults += _check_rollout(connection, read_book(connection, rollout), looking, run_seed, report)
        report.faults += _check_strays(connection)
    return report


def _check_file(connection: sqlite3.Connection) -> Iterator[Fault]:
    """SQLite's own look at pages, indices and constraints."""
    for (told,) in connection.execute("pragma integrity_check"):
        if told != "ok":
            yield Fault("file", str(told))


def _check_strays(connection: Connection) -> Iterator[Fault]:
    for row in connection.execute(_STRAYS):
        yield Fault("rollouts", "its rollout is not there", row["rollout_id"], row["call_id"])
    for row in connection.execute(_STRAY_DELIVERIES):
        yield Fault("deliveries", "a delivery of a call that is not there", None, row["call_id"])


def _check_rollout(
    connection: Connection, book: Book, looking: Looking, run_seed: int | None, report: Report
) -> Iterator[Fault]:
    """Rows first; what they mean only where they hold together."""
    found = list(check_rows(book))
    yield from found
    report.calls += len(book.rows)
    report.unended += sum(1 for row in book.rows if row["state"] == "reserved")
    if any(fault.check in {"bodies", "prompts", "documents"} for fault in found):
        return
    known = Known(
        run_seed,
        order={row["call_id"]: row["seq"] for row in book.rows},
        states={row["call_id"]: row["state"] for row in book.rows},
        ids_hashes={row["call_id"]: row["ids_hash"] for row in book.rows},
    )
    facts, rollout_id = list[CallFacts](), book.rollout["rollout_id"]
    try:
        for call in _documents(connection, rollout_id):
            report.tokens += len(call["completion_token_ids"] or ())
            report.unseeded += _is_unseeded(call, run_seed)
            yield from check_call(call, known)
            yield from looking.also(call)
            facts += read_facts([call], len(facts))
        yield from _check_trajectory(connection, rollout_id, facts)
    except UNREADABLE as error:
        yield book.fault("documents", f"cannot be read: {type(error).__name__}: {error}")


def _documents(connection: Connection, rollout_id: str) -> Iterator[JsonObject]:
    cursor: str | None = None
    while True:
        page = read_calls(connection, rollout_id, cursor, CALLS_A_PAGE)
        yield from page.items
        if (cursor := page.cursor) is None:
            return


def _check_trajectory(connection: Connection, rollout_id: str, facts: list[CallFacts]) -> Iterator[Fault]:
    rollout = read_rollout(connection, RolloutId(rollout_id))
    if rollout is None or not facts:
        return
    made = assemble_calls(rollout, facts, TrajectoryRules())
    yield from (Fault("trajectories", law, rollout_id) for law in broken_laws(made, facts))


def _is_unseeded(call: JsonObject, run_seed: int | None) -> bool:
    seed = call["seed"]
    return seed["source"] in {"minted", "mixed"} and seed.get("run_seed") is None and run_seed is None


def _kept_run_seed(connection: Connection) -> int | None:
    """The run seed that the store drew for itself, if it had to."""
    row = connection.execute("select value from kept where name = 'run_seed'").fetchone()
    return int(row["value"]) if row else None
