"""Earlier calls that a conversation can go on from, in one indexed query however long it is, and what they sampled."""

import hashlib
import json
import sqlite3
from collections.abc import Sequence

from proxy.ids import unpack_ids
from proxy.model import Call, CallId, Conversation, ParentCandidate, ParentSearch, RolloutId, SampledTurn
from proxy.record.prompts import TokenMemory, whole_ids
from proxy.record.rows import arrived

_CANDIDATES = """
select call_id, history, json_extract(document, '$.message') as message, prompt_ids is not null as has_tokens,
    exists (
        select 1 from deliveries where deliveries.call_id = calls.call_id and deliveries.outcome = 'delivered'
    ) as is_delivered
from calls
where rollout_id = ? and history in (select value from json_each(?)) and tools_hash = ? and template_hash = ?
  and state = 'done'
order by seq
"""
_KNOWS = """
select exists (
    select 1 from json_each(?) as told cross join calls where calls.rollout_id = ? and calls.history = told.value
)
"""
_CALL_IDS = """
select client_id, engine_id from json_each(?) as echoed cross join tool_calls
where tool_calls.rollout_id = ? and tool_calls.client_id = echoed.value
"""
_KEEP_CALL_ID = "insert or replace into tool_calls (rollout_id, client_id, engine_id) values (?, ?, ?)"
_SAMPLED = """
select rollout_id, document, prompt_ids is not null as has_tokens, uncaptured, completion_ids from calls
where call_id = ? and state = 'done'
"""


def find_parents(
    connection: sqlite3.Connection,
    memory: TokenMemory,
    rollout_id: RolloutId,
    talk: Conversation,
    boundaries: Sequence[str],
    call_ids: Sequence[str],
) -> ParentSearch:
    """Done calls that answered what stands before the last reply, and whether any beginning was ever asked."""
    if not boundaries:
        return ParentSearch()
    engine_ids = dict(connection.execute(_CALL_IDS, (json.dumps(call_ids), rollout_id)).fetchall())
    key = (rollout_id, json.dumps(boundaries), talk.tools_hash, talk.template_hash)
    rows = connection.execute(_CANDIDATES, key).fetchall()
    is_known = bool(rows) or bool(
        connection.execute(_KNOWS, (json.dumps(talk.history[1:-1]), rollout_id)).fetchone()[0]
    )
    return ParentSearch(
        tuple(
            ParentCandidate(
                call_id=CallId(row["call_id"]),
                history=row["history"],
                message=json.loads(row["message"]),
                tokens_hash=_tokens_hash(connection, memory, row) if len(rows) > 1 else "",
                is_delivered=bool(row["is_delivered"]),
            )
            for row in rows
        ),
        knows_history=is_known,
        engine_call_ids=engine_ids,
    )


def keep_call_ids(connection: sqlite3.Connection, call: Call) -> None:
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
    connection: sqlite3.Connection, memory: TokenMemory, rollout_id: RolloutId, call_id: CallId
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
    )


def _tokens_hash(connection: sqlite3.Connection, memory: TokenMemory, row: sqlite3.Row) -> str:
    """Of prompt and sampled ids together; a call without ids is like no other."""
    if not row["has_tokens"]:
        return str(row["call_id"])
    return hashlib.sha256(whole_ids(connection, memory, row["call_id"])).hexdigest()
