"""Calls as `rollpin.call/1` documents: rows joined with the ids, messages and deliveries that they share or own."""

import json
from collections.abc import Sequence

from proxy import clock
from proxy.ids import ID_BYTES
from proxy.model import JsonObject
from proxy.record.bodies import Requests
from proxy.record.database import Connection, Row
from proxy.record.prompts import TokenMemory, whole_ids
from proxy.record.rollout_rows import read_cursor
from proxy.record.rows import call_document
from proxy.record.store import Page

# A page ends early rather than hold more ids than this as Python integers (about 36 bytes each with its JSON).
PAGE_IDS = 2_000_000

_CALL = """
select calls.*, run, grp, sample, attempt from calls join rollouts using (rollout_id) where call_id = ?
"""
_CALLS = """
select calls.*, run, grp, sample, attempt from calls join rollouts using (rollout_id)
where rollout_id = ? and seq > ? order by seq limit ?
"""
_REQUEST = """
select calls.*, run, grp, sample, attempt from calls join rollouts using (rollout_id)
where request_id = ? and rollout_id = ? order by choice
"""
_DELIVERIES = """
select claim, started_at, ended_at, outcome, events from deliveries where call_id = ? order by number
"""


def read_call(connection: Connection, call_id: str) -> JsonObject | None:
    row = connection.execute(_CALL, (call_id,)).fetchone()
    return _Documents(connection, row["rollout_id"]).document(row) if row else None


def read_request(connection: Connection, rollout_id: str, request_id: str) -> tuple[JsonObject, ...]:
    documents = _Documents(connection, rollout_id)
    return tuple(map(documents.document, connection.execute(_REQUEST, (request_id, rollout_id)).fetchall()))


def read_calls(connection: Connection, rollout_id: str, cursor: str | None, limit: int) -> Page[JsonObject]:
    """A page in order of reservation; shorter than asked where its calls are long."""
    documents = _Documents(connection, rollout_id)
    items, last = list[JsonObject](), cursor
    for row in connection.execute(_CALLS, (rollout_id, read_cursor(cursor), limit + 1)):
        if len(items) == limit or documents.ids_read >= PAGE_IDS:
            return Page(tuple(items), last)
        items.append(documents.document(row))
        last = str(row["seq"])
    return Page(tuple(items), None)


class _Documents:
    """Documents of one rollout, put together with what earlier ones already had to read."""

    def __init__(self, connection: Connection, rollout_id: str) -> None:
        self._connection = connection
        self._memory = TokenMemory()
        self._requests = Requests(connection, rollout_id)
        self.ids_read = 0

    def document(self, row: Row) -> JsonObject:
        ids = None
        if row["prompt_ids"] is not None:
            ids = whole_ids(self._connection, self._memory, row["call_id"])
            self.ids_read += len(ids) // ID_BYTES
        kept = json.loads(row["document"]).get("request") if row["document"] else None
        extra = {
            "deliveries": self._deliveries(row["call_id"]),
            "messages": self._requests.messages(kept) if kept else None,
            "request": self._requests.request(kept) if kept else None,
            "chat_request": self._requests.chat_request(kept) if kept else None,
        }
        return call_document(dict(row), ids, extra)

    def _deliveries(self, call_id: str) -> Sequence[JsonObject]:
        return [_delivery(row) for row in self._connection.execute(_DELIVERIES, (call_id,))]


def _delivery(row: Row) -> JsonObject:
    return {
        "started_at": clock.iso(row["started_at"]),
        "ended_at": clock.iso(row["ended_at"]) if row["ended_at"] else None,
        "claim": row["claim"],
        "outcome": row["outcome"],
        "events": row["events"],
    }
