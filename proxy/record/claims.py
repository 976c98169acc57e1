"""Retry or deliberate repeat: which earlier request, if any, an identical one repeats.

A request is one row per choice; its choices stand and fall together. Each loss (a failure, or a client that left) is
made good by one repeat at most, the oldest first; where nothing was lost the request is a new draw.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.model import CallId, Claimed, ClaimReason, Reservation

# A draw that broke this often after its first token will break again: the next retry draws anew.
MOST_BREAKS = 2

_CANDIDATES = """
select request_id, call_id, choice, occurrence, seed, state, failure_kind, claimable, broken, idempotency_key, document
from calls where rollout_id = ? and ask_hash = ? and state in ('reserved', 'done', 'failed') order by seq
"""
_CLAIM = "update calls set claimable = null where call_id = ?"
_AGAIN = """
update calls set state = 'reserved', claimable = null, failure_kind = null, owner = :owner, lease_until = :lease_until,
    earlier = json_insert(earlier, '$[#]', json(:failure))
where call_id = :call_id
"""
_DELIVERY = "insert into deliveries (delivery_id, call_id, claim, started_at) values (?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An earlier identical request."""

    request_id: str
    rows: tuple[sqlite3.Row, ...]

    @property
    def has_failed(self) -> bool:
        return any(row["state"] == "failed" for row in self.rows)

    @property
    def is_abandoned(self) -> bool:
        """Whether trying the same draw again is pointless."""
        return self.has_failed and max(row["broken"] for row in self.rows) >= MOST_BREAKS

    @property
    def lost(self) -> ClaimReason | None:
        """Why the next identical request repeats this one, if it does."""
        reasons: list[ClaimReason] = [row["claimable"] for row in self.rows if row["claimable"]]
        return reasons[0] if reasons else None


@dataclass(frozen=True, slots=True)
class Claim:
    """A candidate and by what right it is repeated."""

    candidate: Candidate
    reason: ClaimReason


def read_candidates(connection: sqlite3.Connection, asked: Reservation) -> tuple[Candidate, ...]:
    """Earlier requests that are identical to this one, oldest first."""
    rows = connection.execute(_CANDIDATES, (asked.rollout_id, asked.repeat.ask_hash)).fetchall()
    by_request: dict[str, list[sqlite3.Row]] = {}
    for row in rows:
        by_request.setdefault(row["request_id"], []).append(row)
    return tuple(Candidate(name, tuple(sorted(group, key=_choice))) for name, group in by_request.items())


def choose_claim(candidates: Sequence[Candidate], asked: Reservation) -> Claim | None:
    """The request that this one repeats: by key, by an earlier loss, by a retry's mark where only one can be meant."""
    usable = [candidate for candidate in candidates if not candidate.is_abandoned]
    if key := asked.repeat.idempotency_key:
        for candidate in usable:
            if candidate.rows[0]["idempotency_key"] == key:
                return Claim(candidate, "idempotency_key")
    for candidate in usable:
        if reason := candidate.lost:
            return Claim(candidate, reason)
    if asked.repeat.is_retry and len(usable) == 1:
        return Claim(usable[0], "retry_count")
    return None


def is_giving_up(candidates: Sequence[Candidate]) -> bool:
    """Whether a new draw replaces one that broke too often."""
    return any(candidate.is_abandoned and candidate.lost for candidate in candidates)


def write_claim(connection: sqlite3.Connection, claim: Claim, asked: Reservation) -> Claimed:
    """Note the delivery, and put failed rows back to reserved."""
    candidate = claim.candidate
    for row in candidate.rows:
        if candidate.has_failed:
            _try_again(connection, row, asked)
        else:
            connection.execute(_CLAIM, (row["call_id"],))
    call_ids = tuple(CallId(row["call_id"]) for row in candidate.rows)
    begin_delivery(connection, asked, call_ids, claim.reason)
    is_running = any(row["state"] == "reserved" for row in candidate.rows)
    return Claimed(
        request_id=candidate.request_id,
        call_ids=call_ids,
        occurrence=candidate.rows[0]["occurrence"],
        seeds=tuple(row["seed"] for row in candidate.rows),
        standing="again" if candidate.has_failed else "running" if is_running else "recorded",
        reason=claim.reason,
    )


def forget_abandoned(connection: sqlite3.Connection, candidates: Sequence[Candidate]) -> None:
    """A draw that was replaced is not replaced twice."""
    for candidate in candidates:
        if candidate.is_abandoned:
            connection.executemany(_CLAIM, [(row["call_id"],) for row in candidate.rows])


def begin_delivery(
    connection: sqlite3.Connection, asked: Reservation, call_ids: Sequence[CallId], reason: ClaimReason | None
) -> None:
    """One client begins to read these calls."""
    rows = [(asked.delivery_id, call_id, reason, asked.asked_at) for call_id in call_ids]
    connection.executemany(_DELIVERY, rows)


def _try_again(connection: sqlite3.Connection, row: sqlite3.Row, asked: Reservation) -> None:
    failure = json.loads(row["document"] or "{}").get("failure")
    connection.execute(
        _AGAIN,
        {
            "call_id": row["call_id"],
            "owner": asked.owner,
            "lease_until": asked.lease_until,
            "failure": json.dumps(failure),
        },
    )


def _choice(row: sqlite3.Row) -> int:
    return int(row["choice"])
