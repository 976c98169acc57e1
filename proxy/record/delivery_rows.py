"""Deliveries as rows: who read a request's calls, and what was lost on the way."""

from collections.abc import Sequence

from proxy import clock
from proxy.model import Delivery
from proxy.record.database import Connection, Row

_END = """
update deliveries set ended_at = :ended_at, outcome = :outcome, events = :events
where delivery_id = :delivery_id and outcome is null
"""
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
_LASTING = "select distinct delivery_id from deliveries where outcome is null"


def end_delivery(connection: Connection, delivery: Delivery) -> None:
    """Write down how a reading ended; nothing where the rollout was deleted meanwhile."""
    row = {
        "delivery_id": delivery.delivery_id,
        "ended_at": delivery.ended_at,
        "outcome": delivery.outcome,
        "events": delivery.events,
    }
    ended = connection.execute(_END, row)
    if ended.rowcount and delivery.outcome in {"client_gone", "lost"}:
        connection.execute(_LOSE, {"delivery_id": delivery.delivery_id})
    elif not ended.rowcount and delivery.outcome == "delivered" and connection.execute(_END_OF_LOST, row).rowcount:
        connection.execute(_FIND, {"delivery_id": delivery.delivery_id})


def lose_all(connection: Connection) -> None:
    """Readings that a dead process left open: nobody knows how far they came."""
    _lose(connection, connection.execute(_LASTING).fetchall(), clock.now())


def lose_of(connection: Connection, owner: str, now: float) -> None:
    """The same, for one of several processes."""
    _lose(connection, connection.execute(f"{_LASTING} and owner = ?", (owner,)).fetchall(), now)


def _lose(connection: Connection, lasting: Sequence[Row], now: float) -> None:
    for row in lasting:
        end_delivery(connection, Delivery(row["delivery_id"], now, "lost", 0))
