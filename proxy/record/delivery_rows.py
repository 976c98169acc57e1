"""Deliveries as rows: who read a request's calls, and what was lost on the way."""

from collections.abc import Sequence

from proxy import clock
from proxy.model import Delivery
from proxy.record.database import Connection, Row

_END = """
update deliveries set ended_at = :ended_at, outcome = :outcome, events = :events
where delivery_id = :delivery_id and outcome is null
"""
# Of these the client has not seen the end of the reply, nor been told that there is none.
LOSSES = {"client_gone", "broken", "lost"}
# The client of the latest delivery is gone: the next identical request repeats the call.
_LOSE = """
update calls set claimable = coalesce(claimable, 'client_gone')
where state in ('reserved', 'done', 'failed') and call_id in (
    select call_id from deliveries as ended where delivery_id = :delivery_id and not exists (
        select 1 from deliveries as later where later.call_id = ended.call_id and later.number > ended.number
    )
)
"""
# That it was lost was a guess from its process's silence, which gives way to what that process says itself.
_END_OF_LOST = """
update deliveries set ended_at = :ended_at, outcome = :outcome, events = :events
where delivery_id = :delivery_id and outcome = 'lost'
"""
# Nothing was lost by it after all, unless somebody has begun to read since.
_FIND = """
update calls set claimable = null
where claimable = 'client_gone' and state = 'done' and call_id in (
    select call_id from deliveries as ended where delivery_id = :delivery_id and not exists (
        select 1 from deliveries as later where later.call_id = ended.call_id and later.number > ended.number
    )
)
"""
# What was assembled of a closed rollout may have another main path now.
_RAISE = """
update rollouts set revision = revision + 1 where state <> 'open' and rollout_id in (
    select calls.rollout_id from calls join deliveries on deliveries.call_id = calls.call_id
    where deliveries.delivery_id = :delivery_id
)
"""
_LASTING = "select distinct delivery_id from deliveries where outcome is null"


def end_delivery(connection: Connection, delivery: Delivery) -> None:
    """Write down how a reading ended; nothing where the rollout was deleted meanwhile.

    Raises the revision of a rollout that is closed already: how its trajectory stands may hang on it.
    """
    row = {
        "delivery_id": delivery.delivery_id,
        "ended_at": delivery.ended_at,
        "outcome": delivery.outcome,
        "events": delivery.events,
    }
    named = {"delivery_id": delivery.delivery_id}
    if connection.execute(_END, row).rowcount:
        if delivery.outcome in LOSSES:
            connection.execute(_LOSE, named)
    elif delivery.outcome == "delivered" and connection.execute(_END_OF_LOST, row).rowcount:
        connection.execute(_FIND, named)
    else:
        return
    connection.execute(_RAISE, named)


def lose_all(connection: Connection) -> None:
    """Readings that a dead process left open: nobody knows how far they came."""
    _lose(connection, connection.execute(_LASTING).fetchall(), clock.now())


def lose_of(connection: Connection, owner: str, now: float) -> None:
    """The same, for one of several processes."""
    _lose(connection, connection.execute(f"{_LASTING} and owner = ?", (owner,)).fetchall(), now)


def _lose(connection: Connection, lasting: Sequence[Row], now: float) -> None:
    for row in lasting:
        end_delivery(connection, Delivery(row["delivery_id"], now, "lost", 0))
