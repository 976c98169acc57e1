"""Calls as rows: reserved before an engine is asked, given their outcome once, late where the rollout was closed."""

import json
from collections.abc import Sequence
from dataclasses import replace

from proxy.counted import counted
from proxy.errors import LimitReached, NotFound, RolloutClosed, SeedCollision, TakenOver
from proxy.ids import pack_ids
from proxy.model import Call, CallId, Claimed, Draw, Failure, GroupFlag, JsonObject, Reservation, Reserved
from proxy.record.bodies import keep_request
from proxy.record.claims import (
    begin_delivery,
    choose_claim,
    forget,
    read_candidates,
    write_claim,
)
from proxy.record.collapse import completion_hash, find_collapse
from proxy.record.database import Connection, Row
from proxy.record.packing import ids_hash, tokens_hash
from proxy.record.parent_rows import keep_call_ids
from proxy.record.prompts import KeptPrompt, TokenMemory, keep_prompt
from proxy.record.rollout_rows import expire_rollout, raise_revision
from proxy.record.rows import LATE, PROXY_DIED, arrived, failure_field, has_broken, kept_document, outcome_columns

_HELD = "select occurrence, seed from calls where request_id = ? order by choice"
_ROLLOUT = "select run, grp, sample, state, expires_at from rollouts where rollout_id = ?"
# Rows leave only with their whole rollout, so that the lowest free number is the one after the highest.
_NEXT_OCCURRENCE = """
select coalesce(max(occurrence), -1) + 1 from calls where rollout_id = ? and context = ?
"""
# Rows of one rollout are numbered without gaps, since they leave only with all of it.
_NUMBER = "select coalesce(max(seq), -1) + 1 from calls where rollout_id = ?"
_SEED_HOLDER = """
select rollout_id from calls join rollouts using (rollout_id)
where calls.context = :context and calls.seed = :seed
  and rollouts.run = :run and rollouts.grp = :grp and rollouts.sample <> :sample
limit 1
"""
_RESERVE = """
insert into calls (
    call_id, request_id, rollout_id, seq, context, occurrence, choice, seed, state, owner, lease_until, api, stream,
    asked_at, history, ask_hash, idempotency_key
) values (
    :call_id, :request_id, :rollout_id,
    (select coalesce(max(seq), -1) + 1 from calls where rollout_id = :rollout_id),
    :context, :occurrence, :choice, :seed, 'reserved', :owner, :lease_until, :api, :stream, :asked_at, :history,
    :ask_hash, :idempotency_key
)
"""
_STANDING = "select state, failure_kind, earlier from calls where call_id = ?"
_RECORD = """
update calls set
    state = :state, lease_until = null, failure_kind = :failure_kind, uncaptured = :uncaptured,
    tools_hash = :tools_hash, template_hash = :template_hash, parent_call_id = :parent_call_id,
    parent_outcome = :parent_outcome, parent_reason = :parent_reason, prompt_tokens = :prompt_tokens,
    completion_tokens = :completion_tokens, prompt_base_call_id = :prompt_base_call_id,
    prompt_shared = :prompt_shared, prompt_ids = :prompt_ids, completion_ids = :completion_ids,
    logprobs = :logprobs, message = :message, document = :document, completion_hash = :completion_hash,
    ids_hash = :ids_hash, prefix_eligible = :prefix_eligible, prefix_supplied = :prefix_supplied,
    prefix_reason = :prefix_reason,
    claimable = case when :state <> 'failed' then nullif(claimable, 'failed')
        else coalesce(claimable, case when :failure_kind = 'client_gone' then 'client_gone' else 'failed' end) end,
    broken = broken + :broke
where call_id = :call_id
"""
_SETTLE = """
update calls set state = :state, lease_until = null, failure_kind = :kind, document = :document,
    claimable = case when :state = 'failed' then coalesce(claimable, 'failed') end
where call_id = :call_id
"""
_LATE = "insert into late_results values (?, ?) on conflict do nothing"
_LAPSED = "select call_id, rollout_id from calls where state = 'reserved' and lease_until <= ?"
_RESERVED = "select call_id, rollout_id from calls where state = 'reserved'"


def reserve(connection: Connection, asked: Reservation) -> Reserved | Claimed:
    """Repeat an earlier request or draw anew; a reservation told twice gets the same answer."""
    if held := connection.execute(_HELD, (asked.request_id,)).fetchall():
        return Reserved(held[0]["occurrence"], tuple(row["seed"] for row in held))
    rollout = _open_rollout(connection, asked)
    claim = choose_claim(read_candidates(connection, asked), asked)
    if claim is None:
        return _draw(connection, asked, rollout)
    if not claim.candidate.is_abandoned:
        return write_claim(connection, claim, asked)
    forget(connection, claim.candidate)
    return replace(_draw(connection, asked, rollout), reason="draw_abandoned")


def renew(connection: Connection, owner: str, call_ids: Sequence[CallId], lease_until: float) -> None:
    """Move the leases of a process's calls; one that another process has taken over since is that one's to keep."""
    connection.executemany(
        "update calls set lease_until = ? where call_id = ? and owner = ? and state = 'reserved'",
        [(lease_until, call_id, owner) for call_id in call_ids],
    )


def record(connection: Connection, memory: TokenMemory, calls: Sequence[Call]) -> tuple[GroupFlag, ...] | None:
    """Put the outcomes of one request into its rows; None where they came too late and were only counted."""
    # A set breaks as a whole, whichever of its choices did.
    broke = any(has_broken(call.outcome) for call in calls)
    recorded = [_record_one(connection, memory, call, broke=broke) for call in calls]
    if not all(recorded):
        return None
    return tuple(flag for call in calls for flag in find_collapse(connection, call))


def _record_one(connection: Connection, memory: TokenMemory, call: Call, *, broke: bool) -> bool:
    """False where the outcome came too late.

    An outcome is written once, with one exception: `proxy_died` was a guess from a lapsed lease, and gives way. Where
    the draw was tried again upon that guess the call is the later try's: raises TakenOver.
    """
    rollout_id = call.plan.ask.identity.rollout_id
    expire_rollout(connection, rollout_id, call.timing.started_at + call.timing.ended_s)
    rollout = connection.execute(_ROLLOUT, (rollout_id,)).fetchone()
    standing = connection.execute(_STANDING, (call.plan.call_id,)).fetchone()
    if standing and len(json.loads(standing["earlier"])) != call.plan.tries:
        raise TakenOver("the proxy was silent for so long that another try at this draw was made: its reply counts")
    if standing and not _awaits_outcome(standing):
        return bool(standing["state"] != "late")
    if rollout and rollout["state"] != "open":
        _count_late(connection, call)
        return False
    if standing is None:
        raise NotFound(f"call {call.plan.call_id} was never reserved", code="unknown_call")
    _write_outcome(connection, memory, call, broke=broke)
    return True


def sweep(connection: Connection, now: float) -> int:
    """Give up reservations whose lease lapsed."""
    return _give_up(connection, connection.execute(_LAPSED, (now,)).fetchall())


def give_up_all(connection: Connection) -> int:
    """Give up every reservation: for a store just taken, whose former owner is dead."""
    return _give_up(connection, connection.execute(_RESERVED).fetchall())


def give_up_of(connection: Connection, owner: str) -> int:
    """Give up every reservation of one process among several, which is dead."""
    return _give_up(connection, connection.execute(f"{_RESERVED} and owner = ?", (owner,)).fetchall())


def set_call_outcome(connection: Connection, call_id: CallId, outcome: JsonObject) -> bool:
    found = connection.execute("select rollout_id from calls where call_id = ?", (call_id,)).fetchone()
    if found is None:
        return False
    connection.execute("update calls set outcome = ? where call_id = ?", (json.dumps(outcome), call_id))
    raise_revision(connection, found["rollout_id"])
    return True


def _open_rollout(connection: Connection, asked: Reservation) -> Row:
    rollout: Row | None = connection.execute(_ROLLOUT, (asked.rollout_id,)).fetchone()
    if rollout is None:
        raise NotFound(f"no rollout {asked.rollout_id!r}", code="unknown_rollout")
    if rollout["state"] != "open":
        raise RolloutClosed(f"rollout {asked.rollout_id!r} is {rollout['state']}")
    if rollout["expires_at"] is not None and rollout["expires_at"] <= asked.asked_at:
        raise RolloutClosed(f"rollout {asked.rollout_id!r} has expired")
    return rollout


def _draw(connection: Connection, asked: Reservation, rollout: Row) -> Reserved:
    """Rows for a new draw, one per choice, and its first delivery."""
    _refuse_excess(connection, asked)
    occurrence: int = connection.execute(_NEXT_OCCURRENCE, (asked.rollout_id, asked.context)).fetchone()[0]
    seeds = tuple(draw.mint(occurrence) for draw in asked.draws)
    if asked.exclusive_seed:
        for seed in seeds:
            _refuse_shared_seed(connection, asked, seed, rollout)
    for draw, seed in zip(asked.draws, seeds, strict=True):
        _add_reserved(connection, asked, draw, occurrence, seed)
    begin_delivery(connection, asked, [draw.call_id for draw in asked.draws], None)
    return Reserved(occurrence, seeds)


def _refuse_excess(connection: Connection, asked: Reservation) -> None:
    made: int = connection.execute(_NUMBER, (asked.rollout_id,)).fetchone()[0]
    if asked.most_calls is not None and made + len(asked.draws) > asked.most_calls:
        raise LimitReached(
            f"rollout {asked.rollout_id!r} has made {counted(made, 'call')}, and its limit is {asked.most_calls}"
        )


def _refuse_shared_seed(connection: Connection, asked: Reservation, seed: int, rollout: Row) -> None:
    key = {name: rollout[name] for name in ("run", "grp", "sample")} | {"context": asked.context, "seed": seed}
    if holder := connection.execute(_SEED_HOLDER, key).fetchone():
        raise SeedCollision(
            f"seed {seed} was already drawn with on this conversation by rollout {holder['rollout_id']!r} of the group",
            param="seed",
        )


def _add_reserved(connection: Connection, asked: Reservation, draw: Draw, occurrence: int, seed: int) -> None:
    connection.execute(
        _RESERVE,
        {
            "call_id": draw.call_id,
            "request_id": asked.request_id,
            "rollout_id": asked.rollout_id,
            "context": asked.context,
            "occurrence": occurrence,
            "choice": draw.choice,
            "seed": seed,
            "owner": asked.owner,
            "lease_until": asked.lease_until,
            "api": asked.api,
            "stream": asked.stream,
            "asked_at": asked.asked_at,
            "history": asked.history,
            "ask_hash": asked.repeat.ask_hash,
            "idempotency_key": asked.repeat.idempotency_key,
        },
    )


def _awaits_outcome(standing: Row) -> bool:
    return bool(standing["state"] == "reserved" or standing["failure_kind"] == PROXY_DIED.kind)


def _count_late(connection: Connection, call: Call) -> None:
    """Note that a result came, without keeping it; once per call, also where its row is deleted."""
    rollout_id = call.plan.ask.identity.rollout_id
    counted = connection.execute(_LATE, (call.plan.call_id, rollout_id))
    if counted.rowcount:
        _settle(connection, call.plan.call_id, "late", LATE)
        raise_revision(connection, rollout_id)


def _write_outcome(connection: Connection, memory: TokenMemory, call: Call, *, broke: bool) -> None:
    columns = outcome_columns(call)
    prompt, tokens, whole = KeptPrompt(None, 0, b""), None, None
    if captured := columns["completion_ids"] is not None:
        completion = arrived(call)
        ids = pack_ids(completion.tokens.prompt_ids if completion else ())
        prompt = keep_prompt(connection, memory, call.plan, ids)
        if columns["state"] == "done":  # what a failed try left may give way to another's
            memory.put(call.plan.call_id, ids + columns["completion_ids"])
        tokens = tokens_hash(ids + columns["completion_ids"], columns["logprobs"])
        whole = None if columns["uncaptured"] else ids_hash(ids, columns["completion_ids"])
    columns |= {
        "broke": broke,
        "completion_hash": completion_hash(call),
        "ids_hash": whole,
        "prompt_base_call_id": prompt.base,
        "prompt_shared": prompt.shared,
        "prompt_ids": prompt.rest if captured else None,
        "document": json.dumps(
            kept_document(call) | {"request": keep_request(connection, call.plan.ask), "tokens_hash": tokens}
        ),
    }
    connection.execute(_RECORD, columns)
    keep_call_ids(connection, call)


def _give_up(connection: Connection, rows: Sequence[Row]) -> int:
    for row in rows:
        _settle(connection, row["call_id"], "failed", PROXY_DIED)
    for rollout_id in {row["rollout_id"] for row in rows}:
        connection.execute(
            "update rollouts set revision = revision + 1 where rollout_id = ? and state <> 'open'", (rollout_id,)
        )
    return len(rows)


def _settle(connection: Connection, call_id: str, state: str, failure: Failure) -> None:
    """Close a row without a result."""
    document = json.dumps({"failure": failure_field(failure)})
    connection.execute(_SETTLE, {"call_id": call_id, "state": state, "kind": failure.kind, "document": document})
