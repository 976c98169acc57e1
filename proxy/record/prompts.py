"""Prompts as what they add to an earlier call of the rollout, so that a long rollout costs what it says once.

A call's base is the call whose own request is the longest start of this one; the prompt is kept as the number of ids
that it shares with the base's prompt and completion, and the rest. What is shared is counted on the ids themselves:
a bad choice of base costs room, never correctness.
"""

import threading
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass

from proxy.ids import ID_BYTES, shared_ids
from proxy.model import CallId, Plan
from proxy.record.database import Connection, Row

# Ids remembered in all, 4 bytes each: the latest turns of a few hundred long rollouts.
REMEMBERED_IDS = 8_000_000
# Messages that may lie between a request and its base; beyond it the prompt is kept whole.
LOOK_BACK = 256

_BASE_BY_HISTORY = """
select call_id from calls
where rollout_id = ? and history = ? and state = 'done' and prompt_ids is not null
  and tools_hash = ? and template_hash = ?
order by seq limit 1
"""
_PARENT = """
select history from calls where call_id = ? and rollout_id = ? and state = 'done' and prompt_ids is not null
"""
# Told link by link, nearest first, so that a reader stops where its memory begins.
_CHAIN = """
with recursive chain (call_id, base, shared, prompt_ids, completion_ids) as (
    select call_id, prompt_base_call_id, prompt_shared, prompt_ids, completion_ids from calls where call_id = ?
    union all
    select calls.call_id, prompt_base_call_id, prompt_shared, calls.prompt_ids, calls.completion_ids
    from chain cross join calls
    where calls.call_id = chain.base
)
select call_id, base, shared, prompt_ids, completion_ids from chain
"""


@dataclass(frozen=True, slots=True)
class KeptPrompt:
    """A prompt as it is stored."""

    base: CallId | None
    shared: int
    """Leading ids of the base's prompt and completion that this prompt starts with."""
    rest: bytes


class TokenMemory:
    """Prompt and completion ids of recent calls, packed; forgets the longest unused first. Any thread may use it."""

    def __init__(self, limit_ids: int = REMEMBERED_IDS) -> None:
        self._limit_bytes = limit_ids * ID_BYTES
        self._bytes = 0
        self._lock = threading.Lock()
        self._ids: OrderedDict[str, bytes] = OrderedDict()

    def get(self, call_id: str) -> bytes | None:
        with self._lock:
            ids = self._ids.get(call_id)
            if ids is not None:
                self._ids.move_to_end(call_id)
            return ids

    def put(self, call_id: str, ids: bytes) -> None:
        with self._lock:
            self._bytes += len(ids) - len(self._ids.pop(call_id, b""))
            self._ids[call_id] = ids
            while self._bytes > self._limit_bytes:
                self._bytes -= len(self._ids.popitem(last=False)[1])


class StagedTokens(TokenMemory):
    """What one transaction adds to a memory, apart from it until that is committed: what is undone was never so."""

    def __init__(self, memory: TokenMemory) -> None:
        super().__init__()
        self._memory = memory

    def get(self, call_id: str) -> bytes | None:
        staged = super().get(call_id)
        return self._memory.get(call_id) if staged is None else staged

    def keep(self) -> None:
        """Let the memory have it all."""
        for call_id, ids in self._ids.items():
            self._memory.put(call_id, ids)


def keep_prompt(connection: Connection, memory: TokenMemory, plan: Plan, ids: bytes) -> KeptPrompt:
    """A packed prompt, less what the rollout already holds."""
    base = _find_base(connection, plan)
    if base is None:
        return KeptPrompt(None, 0, ids)
    shared = shared_ids(whole_ids(connection, memory, base), ids)
    return KeptPrompt(base, shared, ids[shared * ID_BYTES :])


def whole_ids(connection: Connection, memory: TokenMemory, call_id: str) -> bytes:
    """Packed prompt and completion ids of a recorded call, by one statement however long the chain below it."""
    ids = memory.get(call_id)
    if ids is not None:
        return ids
    links = list[Row]()
    with closing(connection.execute(_CHAIN, (call_id,))) as chain:
        while ids is None:
            if (link := next(chain, None)) is None:
                raise LookupError(f"the ids of call {call_id} lean on a call that the store does not hold")
            links.append(link)
            ids = b"" if link["base"] is None else memory.get(link["base"])
    for link in reversed(links):
        kept = ids[: (link["shared"] or 0) * ID_BYTES]
        ids = kept + (link["prompt_ids"] or b"") + (link["completion_ids"] or b"")
        memory.put(link["call_id"], ids)
    return ids


def _find_base(connection: Connection, plan: Plan) -> CallId | None:
    """The parent where it is as near as any, else the earliest call with the longest common history.

    The earliest, so that many draws on one conversation all lean on the first instead of on one another.
    """
    parent_history = _parent_history(connection, plan)
    talk = plan.ask.conversation
    for history in talk.history[: -LOOK_BACK - 1 : -1]:
        if history == parent_history:
            return plan.parent.call_id
        key = (plan.ask.identity.rollout_id, history, talk.tools_hash, talk.template_hash)
        if found := connection.execute(_BASE_BY_HISTORY, key).fetchone():
            return CallId(found["call_id"])
    return None


def _parent_history(connection: Connection, plan: Plan) -> str | None:
    if plan.parent.call_id is None:
        return None
    found = connection.execute(_PARENT, (plan.parent.call_id, plan.ask.identity.rollout_id)).fetchone()
    return found["history"] if found else None
