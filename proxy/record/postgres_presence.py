"""Which processes live: each holds a lock on two sessions, which the server drops when it dies, however it dies.

So a retry that comes to another process right after that finds the draw lost. The session to write with holds the lock,
and one that does nothing else (postgres_hold.py): a process is taken for dead only where both are lost, until either is
back. What it records of a draw that was given up meanwhile and tried again is refused. One that is cut off without a
word is known by its leases alone.
"""

from collections.abc import Iterable

from proxy.model import Reservation
from proxy.record import call_rows, weight_rows
from proxy.record.database import Connection, Row

# Shared, so that a new session never waits for the end of a lost one; whoever gets it alone knows that nobody has it.
HOLD = "select pg_advisory_lock_shared(hashtext('rollpin process'), hashtext(?))"
_IS_FREE = "select pg_try_advisory_xact_lock(hashtext('rollpin process'), hashtext(?)) as is_free"
_OTHERS = "select owner from replicas where owner <> ?"
_OTHER_READERS = """
select distinct deliveries.owner from calls
join deliveries on deliveries.call_id = calls.call_id and deliveries.outcome is null
join replicas on replicas.owner = deliveries.owner
where calls.rollout_id = ? and calls.ask_hash = ? and deliveries.owner <> ?
"""


def others(connection: Connection, owner: str) -> tuple[str, ...]:
    """Processes that have given signs of life."""
    return _names(connection.execute(_OTHERS, (owner,)))


def other_readers(connection: Connection, asked: Reservation) -> tuple[str, ...]:
    """Processes from which somebody reads the reply to an identical request, as far as is known."""
    return _names(connection.execute(_OTHER_READERS, (asked.rollout_id, asked.repeat.ask_hash, asked.owner)))


def part_with_dead(connection: Connection, owners: Iterable[str], now: float) -> int:
    """Account for what the dead ones among these have left; how many calls that were."""
    dead = [owner for owner in owners if connection.execute(_IS_FREE, (owner,)).fetchone()["is_free"]]
    given_up = 0
    for owner in dead:
        given_up += call_rows.give_up_of(connection, owner)
        weight_rows.leave(connection, owner, now)
    return given_up


def _names(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(row["owner"] for row in rows)
