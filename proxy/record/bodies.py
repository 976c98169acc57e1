"""Requests without their repetitions: each message of a rollout is kept once, chained to the one before it.

A call holds the hash of its last message, of its tools and of the rest of the client's body. Hashes are over the exact
JSON, not over its meaning: what comes back is what was sent. Bodies belong to one rollout, so that deleting it leaves
nothing behind.
"""

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from proxy.model import Ask, JsonObject

_ADD = "insert or ignore into bodies (rollout_id, hash, previous, body) values (?, ?, ?, ?)"
_READ = "select previous, body from bodies where rollout_id = ? and hash = ?"
_KNOWN = "select 1 from bodies where rollout_id = ? and hash = ?"

# Stands in the kept rest of a body where a part was taken out, so that the order of its keys survives.
_TAKEN_OUT = None


def keep_request(connection: sqlite3.Connection, ask: Ask) -> JsonObject:
    """Store what is new of a request; the answer is what read_request needs to give all of it back."""
    rollout_id = ask.identity.rollout_id
    parts = {name: _TAKEN_OUT if name in {"messages", "tools"} else ask.body[name] for name in ask.body}
    return {
        "messages": _keep_chain(connection, rollout_id, ask.messages),
        "tools": _keep(connection, rollout_id, ask.body["tools"]) if "tools" in ask.body else None,
        "rest": _keep(connection, rollout_id, parts),
        "differing": _differing(ask.body.get("messages"), ask.messages),
    }


class Requests:
    """Requests of one rollout, whole again; shared messages are parsed once."""

    def __init__(self, connection: sqlite3.Connection, rollout_id: str) -> None:
        self._connection = connection
        self._rollout_id = rollout_id
        self._chains: dict[str, list[Any]] = {}

    def messages(self, kept: JsonObject) -> list[Any]:
        """The messages as the engine was to see them."""
        links = list[tuple[str, Any]]()
        step = kept["messages"]
        while step is not None and step not in self._chains:
            previous, body = self._row(step)
            links.append((step, body))
            step = previous.hex() if previous else None
        chain = [*self._chains.get(step or "", []), *(body for _, body in reversed(links))]
        if kept["messages"] is not None:
            self._chains[kept["messages"]] = chain
        return chain

    def request(self, kept: JsonObject) -> JsonObject:
        """The client's body."""
        body: JsonObject = self._row(kept["rest"])[1]
        if "messages" in body:
            body["messages"] = _undo(kept["differing"], self.messages(kept))
        if kept["tools"] is not None:
            body["tools"] = self._row(kept["tools"])[1]
        return body

    def _row(self, name: str) -> tuple[bytes | None, Any]:
        row = self._connection.execute(_READ, (self._rollout_id, bytes.fromhex(name))).fetchone()
        return row["previous"], json.loads(row["body"])


def _keep_chain(connection: sqlite3.Connection, rollout_id: str, messages: Sequence[JsonObject]) -> str | None:
    """Store the messages after the longest known start; the last one's hash stands for all."""
    links = list[tuple[bytes, bytes | None, str]]()
    previous: bytes | None = None
    for message in messages:
        body = json.dumps(message)
        links.append((_hash(previous, body), previous, body))
        previous = links[-1][0]
    for name, before, body in reversed(links):
        if connection.execute(_KNOWN, (rollout_id, name)).fetchone():
            break
        connection.execute(_ADD, (rollout_id, name, before, body))
    return previous.hex() if previous else None


def _keep(connection: sqlite3.Connection, rollout_id: str, value: Any) -> str:
    body = json.dumps(value)
    name = _hash(None, body)
    connection.execute(_ADD, (rollout_id, name, None, body))
    return name.hex()


def _hash(previous: bytes | None, body: str) -> bytes:
    return hashlib.sha256((previous or b"") + body.encode()).digest()


def _differing(sent: Any, settled: Sequence[JsonObject]) -> JsonObject | None:
    """What the client's messages were where settling changed them: by place, or all where places do not match."""
    if not isinstance(sent, list) or len(sent) != len(settled):
        return {"all": sent}
    return {str(place): mine for place, (mine, now) in enumerate(zip(sent, settled, strict=True)) if mine != now}


def _undo(differing: JsonObject, settled: list[Any]) -> Any:
    if "all" in differing:
        return differing["all"]
    return [differing.get(str(place), message) for place, message in enumerate(settled)]
