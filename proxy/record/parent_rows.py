"""Earlier calls that a conversation can go on from, by one indexed statement however long it is; what they sampled."""

import json
from collections.abc import Sequence

from proxy.ids import unpack_ids
from proxy.model import Call, CallId, Conversation, ParentCandidate, ParentSearch, RolloutId, SampledTurn
from proxy.record.database import Connection, Row
from proxy.record.prompts import TokenMemory, whole_ids
from proxy.record.rows import arrived

# Candidates, whether any beginning is known, and ids of tool calls, in one look. The joins run in the order of their
# telling: one probe of an index for each value that is given.
_SEARCH = """
select 'candidate' as found, seq, call_id as name, history, message as told, ids_hash,
    exists (
        select 1 from deliveries where deliveries.call_id = calls.call_id and deliveries.outcome = 'delivered'
    ) as is_delivered
from json_each(:boundaries) as boundary cross join calls
where rollout_id = :rollout_id and history = boundary.value
  and tools_hash = :tools_hash and template_hash = :template_hash and state = 'done'
union all
select 'beginning', null, null, null, null, null, null
where exists (
    select 1 from json_each(:beginnings) as beginning cross join calls
    where calls.rollout_id = :rollout_id and calls.history = beginning.value
)
union all
select 'tool_call', null, tool_calls.client_id, null, tool_calls.engine_id, null, null
from json_each(:call_ids) as echoed cross join tool_calls
where tool_calls.rollout_id = :rollout_id and tool_calls.client_id = echoed.value
order by seq
"""
_KEEP_CALL_ID = """
insert into tool_calls (rollout_id, client_id, engine_id) values (?, ?, ?)
on conflict (rollout_id, client_id) do update set engine_id = excluded.engine_id
"""
_SAMPLED = """
select rollout_id, document, prompt_ids is not null as has_tokens, uncaptured, completion_ids from calls
where call_id = ? and state = 'done'
"""


def find_parents(
    connection: Connection,
    rollout_id: RolloutId,
    talk: Conversation,
    boundaries: Sequence[str],
    call_ids: Sequence[str],
) -> ParentSearch:
    """Done calls that answered what stands before the last reply, and whether any beginning was ever asked."""
    if not boundaries:
        return ParentSearch()
    key = {
        "rollout_id": rollout_id,
        "boundaries": json.dumps(boundaries),
        "beginnings": json.dumps(talk.history[1:-1]),
        "call_ids": json.dumps(call_ids),
        "tools_hash": talk.tools_hash,
        "template_hash": talk.template_hash,
    }
    found: dict[str, list[Row]] = {"candidate": [], "beginning": [], "tool_call": []}
    for row in connection.execute(_SEARCH, key):
        found[row["found"]].append(row)
    return ParentSearch(
        tuple(map(_candidate, found["candidate"])),
        knows_history=bool(found["candidate"] or found["beginning"]),
        engine_call_ids={row["name"]: row["told"] for row in found["tool_call"]},
    )


def keep_call_ids(connection: Connection, call: Call) -> None:
    """Note the engine's own ids of the tool calls that a reply made."""
    completion = arrived(call)
    if completion is None:
        return
    told = completion.message.get("tool_calls") or ()
    said = completion.engine_message.get("tool_calls") or ()
    rollout_id = call.plan.ask.identity.rollout_id
    for mine, its in zip(told, said, strict=False):
        if isinstance(its.get("id"), str):
            connection.execute(_KEEP_CALL_ID, (rollout_id, mine["id"], its["id"]))


def read_sampled_turn(
    connection: Connection, memory: TokenMemory, rollout_id: RolloutId, call_id: CallId
) -> SampledTurn | None:
    """The tokens of a done call of this rollout, and how it ended; None where they are not whole."""
    row = connection.execute(_SAMPLED, (call_id,)).fetchone()
    if row is None or row["rollout_id"] != rollout_id or not row["has_tokens"] or row["uncaptured"]:
        return None
    ids, document = whole_ids(connection, memory, call_id), json.loads(row["document"])
    prompt_bytes = len(ids) - len(row["completion_ids"])
    length = document["sampling"]["length"]
    stop = length.get("stop") or ()
    return SampledTurn(
        prompt_ids=tuple(unpack_ids(ids[:prompt_bytes])),
        completion_ids=tuple(unpack_ids(ids[prompt_bytes:])),
        finish_reason=document["finish_reason"],
        matched_stop=document.get("matched_stop"),
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        has_stop_ids=bool(length.get("stop_token_ids")),
        reasoning=document["engine_message"].get("reasoning") or "",
        engine_kind=document["engine"]["kind"],
        fingerprint=document["engine"].get("fingerprint"),
        tool_choice=document["sampling"]["shaping"].get("tool_choice"),
    )


def _candidate(row: Row) -> ParentCandidate:
    return ParentCandidate(
        call_id=CallId(row["name"]),
        history=row["history"],
        message=json.loads(row["told"]),
        ids_hash=row["ids_hash"] or row["name"],
        is_delivered=bool(row["is_delivered"]),
    )
