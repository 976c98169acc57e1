"""What trainers do to engines, as rows: pauses, which replicas acknowledged them, and each engine's weights."""

from proxy.errors import Conflict
from proxy.model import Pause, Weights
from proxy.record.database import Connection, Row
from proxy.record.delivery_rows import lose_of

_IN_FORCE = "select pause_id, mode, asked_at, lease_until from pauses where ended_at is null"
_BEGIN = "insert into pauses (pause_id, mode, asked_at, lease_until) values (?, ?, ?, ?)"
_END = "update pauses set ended_at = ? where ended_at is null and pause_id = ? and lease_until = ?"
_ALIVE = """
insert into replicas (owner, alive_until) values (:owner, :until)
on conflict (owner) do update set alive_until = excluded.alive_until
"""
_ACKNOWLEDGE = "update replicas set pause_id = ? where owner = ?"
_PROLONG = "update replicas set alive_until = ? where owner = ?"
_SILENT = "select owner from replicas where pause_id is null or pause_id <> ? order by owner"
_WEIGHTS = "select url, version, epoch, told_by, is_flushed, kv, process from weights"
_PUT = """
insert into weights values (:url, :version, 1, :told_by, :is_flushed, :kv, :at, :process)
on conflict (url) do update set
    version = excluded.version, epoch = weights.epoch + 1, told_by = excluded.told_by,
    is_flushed = excluded.is_flushed, kv = excluded.kv, noted_at = excluded.noted_at,
    process = excluded.process
"""


def read_pause(connection: Connection) -> Pause | None:
    row = connection.execute(_IN_FORCE).fetchone()
    return Pause(**dict(row)) if row else None


def begin_pause(connection: Connection, asked: Pause) -> Pause:
    """The pause in force: the one asked for, or the one that there is, with a longer lease."""
    held = read_pause(connection)
    if held is None:
        connection.execute(_BEGIN, (asked.pause_id, asked.mode, asked.asked_at, asked.lease_until))
        return asked
    if held.mode != asked.mode:
        raise Conflict(f"the engines are paused with mode {held.mode!r}: resume them first", code="paused_otherwise")
    connection.execute("update pauses set lease_until = ? where ended_at is null", (asked.lease_until,))
    return Pause(held.pause_id, held.mode, held.asked_at, asked.lease_until)


def end_pause(connection: Connection, seen: Pause | None, at: float) -> bool:
    """End a pause as it was seen. False where one is in force all the same: another, or this one with another lease."""
    if seen is not None:
        connection.execute(_END, (at, seen.pause_id, seen.lease_until))
    return read_pause(connection) is None


def stay_alive(connection: Connection, owner: str, until: float, now: float) -> None:
    """Count a replica among the live ones, and part with those who have given no sign."""
    connection.execute(_ALIVE, {"owner": owner, "until": until})
    part_with_silent(connection, now)


def prolong(connection: Connection, owner: str, until: float, now: float) -> bool:
    """Note the sign of life of a replica that is still counted, and part with those who have given none."""
    is_counted = connection.execute(_PROLONG, (until, owner)).rowcount > 0
    part_with_silent(connection, now)
    return is_counted


def is_counted(connection: Connection, owner: str) -> bool:
    return connection.execute("select 1 from replicas where owner = ?", (owner,)).fetchone() is not None


def part_with_silent(connection: Connection, now: float) -> None:
    """Forget replicas that have given no sign of life for too long."""
    for silent in connection.execute("select owner from replicas where alive_until <= ?", (now,)).fetchall():
        leave(connection, silent["owner"], now)


def acknowledge(connection: Connection, owner: str, pause_id: str) -> None:
    connection.execute(_ACKNOWLEDGE, (pause_id, owner))


def leave(connection: Connection, owner: str, now: float) -> None:
    """A replica has ended, and whoever was reading from it reads no more."""
    lose_of(connection, owner, now)
    connection.execute("delete from replicas where owner = ?", (owner,))


def find_silent(connection: Connection, pause_id: str, now: float) -> tuple[str, ...]:
    """Whom a pause waits for. Who is not to be waited for is forgotten, and learns by that that it was not."""
    part_with_silent(connection, now)
    return tuple(row["owner"] for row in connection.execute(_SILENT, (pause_id,)))


def read_weights(connection: Connection) -> tuple[Weights, ...]:
    return tuple(_weights(row) for row in connection.execute(_WEIGHTS))


def change_weights(connection: Connection, seen: Weights, at: float, *, only_if_new: bool) -> Weights:
    """Write down new weights under the next epoch; with `only_if_new` only where the version is another one."""
    held = connection.execute(f"{_WEIGHTS} where url = ?", (seen.url,)).fetchone()
    if only_if_new and held is not None and held["version"] == seen.version:
        return _weights(held)
    row = {"url": seen.url, "version": seen.version, "told_by": seen.told_by, "kv": seen.kv, "at": at}
    connection.execute(_PUT, row | {"is_flushed": seen.is_flushed, "process": seen.process})
    return _weights(connection.execute(f"{_WEIGHTS} where url = ?", (seen.url,)).fetchone())


def _weights(row: Row) -> Weights:
    return Weights(**{**dict(row), "is_flushed": bool(row["is_flushed"])})
