"""Retry or deliberate repeat: which earlier request, if any, an identical one repeats.

A request is one row per choice; its choices stand and fall together. Each loss (a failure, or a client that left) is
made good by one repeat at most, the oldest first; where nothing was lost the request is a new draw. Two requests with
different Idempotency-Keys are never one, whatever else they share.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.model import CallId, Claimed, ClaimReason, Reservation
from proxy.record.database import Connection, Row

# A draw that broke this often after its first token may break for ever: the next retry draws anew.
MOST_BREAKS = 2

_CANDIDATES = """
select request_id, call_id, choice, occurrence, seed, state, failure_kind, claimable, broken, idempotency_key, earlier,
    case when state = 'failed' then document end as document
from calls where rollout_id = ? and ask_hash = ? and state in ('reserved', 'done', 'failed') order by seq
"""
_CLAIM = "update calls set claimable = null, idempotency_key = coalesce(idempotency_key, :key) where call_id = :call_id"
_FORGET = "update calls set claimable = null where call_id = ?"
# What the failed try had left goes: until its outcome the row says no more than any reservation.
_AGAIN = """
update calls set state = 'reserved', owner = :owner, lease_until = :lease_until,
    failure_kind = null, prompt_tokens = 0, completion_tokens = 0, prompt_base_call_id = null, prompt_shared = null,
    prompt_ids = null, completion_ids = null, logprobs = null, message = null, document = null, ids_hash = null,
    prefix_eligible = null, prefix_supplied = null, prefix_reason = null, earlier = :earlier
where call_id = :call_id
"""
_DELIVERY = "insert into deliveries (delivery_id, call_id, claim, started_at, owner) values (?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An earlier identical request."""

    request_id: str
    rows: tuple[Row, ...]

    @property
    def has_failed(self) -> bool:
        return any(row["state"] == "failed" for row in self.rows)

    @property
    def key(self) -> str | None:
        """The Idempotency-Key that it was asked or repeated with."""
        key: str | None = self.rows[0]["idempotency_key"]
        return key

    @property
    def tries(self) -> int:
        """How often it was tried and failed."""
        return len(json.loads(self.rows[0]["earlier"])) + self.has_failed

    @property
    def is_abandoned(self) -> bool:
        """Whether trying the same draw again is pointless: its retry draws anew."""
        return self.has_failed and bool(self.rows[0]["broken"] >= MOST_BREAKS)

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


def read_candidates(connection: Connection, asked: Reservation) -> tuple[Candidate, ...]:
    """Earlier requests that are identical to this one, oldest first."""
    rows = connection.execute(_CANDIDATES, (asked.rollout_id, asked.repeat.ask_hash)).fetchall()
    by_request: dict[str, list[Row]] = {}
    for row in rows:
        by_request.setdefault(row["request_id"], []).append(row)
    return tuple(Candidate(name, tuple(sorted(group, key=_choice))) for name, group in by_request.items())


def choose_claim(candidates: Sequence[Candidate], asked: Reservation) -> Claim | None:
    """The request that this one repeats: by key, by an earlier loss, by a retry's mark where only one can be meant."""
    key = asked.repeat.idempotency_key
    usable = [candidate for candidate in candidates if not candidate.is_abandoned]
    if named := [candidate for candidate in usable if key and candidate.key == key]:
        return Claim(named[0], "idempotency_key")
    for candidate in candidates:
        if _may_be_meant(candidate, key) and (reason := candidate.lost):
            return Claim(candidate, reason)
    meant = [candidate for candidate in usable if _may_be_meant(candidate, key)]
    if asked.repeat.is_retry and len(meant) == 1:
        return Claim(meant[0], "retry_count")
    return None


def write_claim(connection: Connection, claim: Claim, asked: Reservation) -> Claimed:
    """Note the delivery, and put failed rows back to reserved."""
    candidate = claim.candidate
    for row in candidate.rows:
        if candidate.has_failed:
            _try_again(connection, row, asked)
        connection.execute(_CLAIM, {"call_id": row["call_id"], "key": asked.repeat.idempotency_key})
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
        tries=candidate.tries,
    )


def forget(connection: Connection, abandoned: Candidate) -> None:
    """A draw that was replaced is not replaced twice."""
    connection.executemany(_FORGET, [(row["call_id"],) for row in abandoned.rows])


def begin_delivery(
    connection: Connection, asked: Reservation, call_ids: Sequence[CallId], reason: ClaimReason | None
) -> None:
    """One client begins to read these calls."""
    rows = [(asked.delivery_id, call_id, reason, asked.asked_at, asked.owner) for call_id in call_ids]
    connection.executemany(_DELIVERY, rows)


def _try_again(connection: Connection, row: Row, asked: Reservation) -> None:
    failure = json.loads(row["document"] or "{}").get("failure")
    connection.execute(
        _AGAIN,
        {
            "call_id": row["call_id"],
            "owner": asked.owner,
            "lease_until": asked.lease_until,
            "earlier": json.dumps([*json.loads(row["earlier"]), failure]),
        },
    )


def _may_be_meant(candidate: Candidate, key: str | None) -> bool:
    return key is None or candidate.key is None or candidate.key == key


def _choice(row: Row) -> int:
    return int(row["choice"])
