"""The group-collapse alarm: two samples of a group that drew the same first reply, token for token.

That is what a group looks like when its seeds are ignored or shared, and it makes every advantage zero. Replies that
two honest draws would share anyway (a short "Yes") raise no alarm: how likely that is follows from the logprobs.
"""

import hashlib
import json
import math
from collections.abc import Iterator

from proxy.ids import pack_ids
from proxy.model import Call, Completion, GroupFlag
from proxy.record.database import Connection

# Two independent draws that coincide with a likelihood below this are no coincidence, also not among the two thousand
# pairs of a group of 64.
COINCIDENCE = 1e-6

_TWIN = """
select call_id, rollout_id from calls join rollouts using (rollout_id)
where calls.context = :context and calls.completion_hash = :hash and calls.call_id <> :call_id
  and rollouts.run = :run and rollouts.grp = :grp and rollouts.rollout_id <> :rollout_id
limit 1
"""
_RAISE = "insert into group_flags values (:run, :grp, 'collapsed', :at, :detail) on conflict do nothing"
_FLAGS = "select flag, raised_at, detail from group_flags where run = ? and grp = ? order by raised_at"


def completion_hash(call: Call) -> bytes | None:
    """A hash of a first turn's sampled ids, where chance alone would hardly repeat them; else None."""
    plan, reply = call.plan, call.outcome
    is_first = plan.parent.outcome == "root" and plan.seed.occurrence == 0 and plan.seed.choice == 0
    if not is_first or plan.profile.is_greedy or not isinstance(reply, Completion) or not reply.captured:
        return None
    if math.exp(min(0.0, math.fsum(reply.tokens.logprobs))) > COINCIDENCE:
        return None
    return hashlib.sha256(pack_ids(reply.tokens.completion_ids)).digest()


def find_collapse(connection: Connection, call: Call) -> Iterator[GroupFlag]:
    """The flag that this call raises on its group, the first time that one does."""
    hashed, rollout = completion_hash(call), call.plan.ask.identity.rollout
    if hashed is None:
        return
    key = {"run": rollout.run, "grp": rollout.group}
    mine = {"context": call.plan.ask.conversation.context, "hash": hashed, "call_id": call.plan.call_id}
    twin = connection.execute(_TWIN, key | mine | {"rollout_id": rollout.rollout_id}).fetchone()
    if twin is None:
        return
    detail = {"rollouts": sorted([twin["rollout_id"], rollout.rollout_id])}
    detail["calls"] = [twin["call_id"], call.plan.call_id]
    at = call.timing.started_at + call.timing.ended_s
    raised = connection.execute(_RAISE, key | {"at": at, "detail": json.dumps(detail)})
    if raised.rowcount:
        yield GroupFlag("collapsed", at, detail)


def read_flags(connection: Connection, run: str, group: str) -> tuple[GroupFlag, ...]:
    rows = connection.execute(_FLAGS, (run, group)).fetchall()
    return tuple(GroupFlag(row["flag"], row["raised_at"], json.loads(row["detail"])) for row in rows)
