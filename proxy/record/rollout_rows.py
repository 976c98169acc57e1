"""Rollouts as rows: names that are taken once and for ever, and the states they go through."""

import json
from collections.abc import Sequence
from typing import Any

from proxy.errors import BadAsk, Conflict
from proxy.model import JsonObject, Rollout, RolloutId, RolloutState
from proxy.record.database import Connection, Row
from proxy.record.store import Page, PrefixCounts, RolloutCounts, RolloutFilter

_ADD = """
insert into rollouts (
    rollout_id, run, grp, sample, attempt, profile, sampling, state, created_at, expires_at, finished_at,
    token_budget, metadata, outcome, revision
) values (
    :rollout_id, :run, :grp, :sample, :attempt, :profile, :sampling, :state, :created_at, :expires_at, :finished_at,
    :token_budget, :metadata, :outcome, :revision
)
on conflict do nothing
"""
_COUNTS = """
select state, failure_kind, count(*) as calls, sum(uncaptured) as uncaptured,
    sum(prompt_tokens) as prompt_tokens, sum(completion_tokens) as completion_tokens
from calls where rollout_id = ? group by state, failure_kind
"""
_PREFIXES = """
select prefix_eligible as eligible, prefix_supplied as supplied, prefix_reason as reason, count(*) as calls
from calls where rollout_id = ? and state = 'done' group by prefix_eligible, prefix_supplied, prefix_reason
"""
_DROP = (
    "delete from deliveries where call_id in (select call_id from calls where rollout_id = ?)",
    "delete from calls where rollout_id = ?",
    "delete from bodies where rollout_id = ?",
    "delete from tool_calls where rollout_id = ?",
)
_EXPIRE = """
update rollouts set state = 'expired', finished_at = :now where state = 'open' and expires_at <= :now
"""


def create_rollouts(
    connection: Connection, rollouts: Sequence[Rollout], key: str | None, asked: str
) -> tuple[Rollout, ...]:
    """Add all or none; the same key with the same digest answers with what it made before."""
    if key is not None and (made := _made_before(connection, key, asked)) is not None:
        return made
    for rollout in rollouts:
        _add(connection, rollout)
    if key is not None:
        ids = json.dumps([rollout.rollout_id for rollout in rollouts])
        connection.execute("insert into idempotency_keys values (?, ?, ?)", (key, asked, ids))
    return tuple(rollouts)


def read_rollout(connection: Connection, rollout_id: str) -> Rollout | None:
    row = connection.execute("select * from rollouts where rollout_id = ?", (rollout_id,)).fetchone()
    return _rollout(row) if row else None


def read_rollouts(connection: Connection, narrow: RolloutFilter, cursor: str | None, limit: int) -> Page[Rollout]:
    """A page in order of creation."""
    clauses, values = ["number > ?"], list[Any]([read_cursor(cursor)])
    for clause, value in (("run = ?", narrow.run), ("grp = ?", narrow.group), ("state = ?", narrow.state)):
        if value is not None:
            clauses.append(clause)
            values.append(value)
    if narrow.state is None:
        clauses.append("state <> 'deleted'")
    where = " and ".join(clauses)
    query = f"select * from rollouts where {where} order by number limit ?"  # noqa: S608 - constant clauses
    rows = connection.execute(query, (*values, limit + 1)).fetchall()
    more = str(rows[limit - 1]["number"]) if len(rows) > limit else None
    return Page(tuple(_rollout(row) for row in rows[:limit]), more)


def read_counts(connection: Connection, rollout_id: str) -> RolloutCounts:
    rows = connection.execute(_COUNTS, (rollout_id,)).fetchall()
    failures = [(row["failure_kind"], row["calls"]) for row in rows if row["state"] == "failed"]
    late = connection.execute("select count(*) from late_results where rollout_id = ?", (rollout_id,))
    return RolloutCounts(
        calls=sum(row["calls"] for row in rows),
        completed=_number(rows, "done"),
        failed=_number(rows, "failed"),
        reserved=_number(rows, "reserved"),
        late=late.fetchone()[0],
        uncaptured=sum(row["uncaptured"] for row in rows),
        prompt_tokens=sum(row["prompt_tokens"] for row in rows),
        completion_tokens=sum(row["completion_tokens"] for row in rows),
        failures=tuple(sorted(failures, key=lambda pair: (-pair[1], pair[0]))),
    )


def read_prefix_counts(connection: Connection, rollout_id: str) -> PrefixCounts:
    rows = connection.execute(_PREFIXES, (rollout_id,)).fetchall()
    unsupplied = [(row["reason"], row["calls"]) for row in rows if row["eligible"] and not row["supplied"]]
    return PrefixCounts(
        total=sum(row["calls"] for row in rows),
        eligible=sum(row["calls"] for row in rows if row["eligible"]),
        supplied=sum(row["calls"] for row in rows if row["supplied"]),
        unsupplied=tuple(sorted(unsupplied, key=lambda pair: (-pair[1], pair[0]))),
    )


def close_rollout(connection: Connection, rollout_id: RolloutId, state: RolloutState, at: float) -> Rollout | None:
    """Move to a closed state; what is closed can only be deleted, and what is over its time has expired."""
    expire_rollout(connection, rollout_id, at)
    rollout = read_rollout(connection, rollout_id)
    if rollout is None or rollout.state == "deleted" or (rollout.state != "open" and state != "deleted"):
        return rollout
    connection.execute(
        "update rollouts set state = ?, finished_at = coalesce(finished_at, ?) where rollout_id = ?",
        (state, at, rollout_id),
    )
    if state == "deleted":
        for statement in _DROP:
            connection.execute(statement, (rollout_id,))
    return read_rollout(connection, rollout_id)


def expire_rollout(connection: Connection, rollout_id: RolloutId, now: float) -> None:
    """Close one rollout if its time is over, whether or not the sweep has come by."""
    connection.execute(f"{_EXPIRE} and rollout_id = :rollout_id", {"now": now, "rollout_id": rollout_id})


def expire_rollouts(connection: Connection, now: float) -> int:
    return connection.execute(_EXPIRE, {"now": now}).rowcount


def set_outcome(connection: Connection, rollout_id: RolloutId, outcome: JsonObject) -> Rollout | None:
    connection.execute("update rollouts set outcome = ? where rollout_id = ?", (json.dumps(outcome), rollout_id))
    raise_revision(connection, rollout_id)
    return read_rollout(connection, rollout_id)


def raise_revision(connection: Connection, rollout_id: str) -> None:
    connection.execute("update rollouts set revision = revision + 1 where rollout_id = ?", (rollout_id,))


def read_cursor(cursor: str | None) -> int:
    """The place that a cursor of ours names."""
    if cursor is None:
        return -1
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise BadAsk("the cursor is not one that a page gave", param="cursor")
    return int(cursor)


def _made_before(connection: Connection, key: str, asked: str) -> tuple[Rollout, ...] | None:
    found = connection.execute("select * from idempotency_keys where key = ?", (key,)).fetchone()
    if found is None:
        return None
    if found["asked"] != asked:
        raise Conflict("the Idempotency-Key was used with another body", code="idempotency_conflict")
    made = (read_rollout(connection, rollout_id) for rollout_id in json.loads(found["rollout_ids"]))
    return tuple(rollout for rollout in made if rollout is not None)


def _add(connection: Connection, rollout: Rollout) -> None:
    if connection.execute(_ADD, _columns(rollout)).rowcount:
        return
    if read_rollout(connection, rollout.rollout_id):
        raise Conflict(
            f"rollout_id {rollout.rollout_id!r} is taken, for ever: name another, or another group or run",
            param="rollout_id",
        )
    raise Conflict(
        f"run {rollout.run!r}, group {rollout.group!r} already has sample {rollout.sample}, attempt {rollout.attempt}",
        param="attempt",
    )


def _columns(rollout: Rollout) -> dict[str, Any]:
    return {
        "rollout_id": rollout.rollout_id,
        "run": rollout.run,
        "grp": rollout.group,
        "sample": rollout.sample,
        "attempt": rollout.attempt,
        "profile": rollout.profile,
        "sampling": json.dumps(dict(rollout.sampling)),
        "state": rollout.state,
        "created_at": rollout.created_at,
        "expires_at": rollout.expires_at,
        "finished_at": rollout.finished_at,
        "token_budget": rollout.token_budget,
        "metadata": json.dumps(rollout.metadata),
        "outcome": None if rollout.outcome is None else json.dumps(rollout.outcome),
        "revision": rollout.revision,
    }


def _rollout(row: Row) -> Rollout:
    return Rollout(
        rollout_id=RolloutId(row["rollout_id"]),
        run=row["run"],
        group=row["grp"],
        sample=row["sample"],
        attempt=row["attempt"],
        profile=row["profile"],
        sampling=json.loads(row["sampling"]),
        state=row["state"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        finished_at=row["finished_at"],
        token_budget=row["token_budget"],
        metadata=json.loads(row["metadata"]),
        outcome=None if row["outcome"] is None else json.loads(row["outcome"]),
        revision=row["revision"],
    )


def _number(rows: Sequence[Row], state: str) -> int:
    return sum(row["calls"] for row in rows if row["state"] == state)
