"""Earlier calls that answered a beginning of a conversation, in one indexed query however long it is."""

import hashlib
import json
import sqlite3
from collections.abc import Sequence

from proxy.model import CallId, Conversation, ParentCandidate, ParentSearch, RolloutId
from proxy.record.prompts import TokenMemory, whole_ids

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


def find_parents(
    connection: sqlite3.Connection, rollout_id: RolloutId, talk: Conversation, boundaries: Sequence[str]
) -> ParentSearch:
    """Done calls that answered what stands before the last reply, and whether any beginning was ever asked."""
    if not boundaries:
        return ParentSearch()
    key = (rollout_id, json.dumps(boundaries), talk.tools_hash, talk.template_hash)
    rows = connection.execute(_CANDIDATES, key).fetchall()
    is_known = bool(rows) or bool(
        connection.execute(_KNOWS, (json.dumps(talk.history[1:-1]), rollout_id)).fetchone()[0]
    )
    memory = TokenMemory()
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
    )


def _tokens_hash(connection: sqlite3.Connection, memory: TokenMemory, row: sqlite3.Row) -> str:
    """Of prompt and sampled ids together; a call without ids is like no other."""
    if not row["has_tokens"]:
        return str(row["call_id"])
    return hashlib.sha256(whole_ids(connection, memory, row["call_id"])).hexdigest()
