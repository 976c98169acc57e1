"""Requests without their repetitions: each message of a rollout is kept once, chained to the one before it.

A call holds the hash of its last message, of its tools and of the rest of the client's body. Where the client spoke
another API than chat, its own list of messages or items is kept in the same way beside the one that the engine saw;
other big parts are kept once for all calls that share them. Hashes are over the exact JSON, not over its meaning: what
comes back is what was sent. Bodies belong to one rollout, so that deleting it leaves nothing behind.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from proxy.model import Ask, JsonObject
from proxy.record.database import Connection

_ADD = "insert into bodies (rollout_id, hash, previous, body) values (?, ?, ?, ?) on conflict do nothing"
_READ = "select previous, body from bodies where rollout_id = ? and hash = ?"
_KNOWN = "select 1 from bodies where rollout_id = ? and hash = ?"

# Stands in the kept rest of a body where a part was taken out, so that the order of its keys survives.
_TAKEN_OUT = None
# Lists that go on from call to call, in the APIs that are not chat.
_GROWING = frozenset({"messages", "input"})
# Parts of a body that take fewer bytes are kept with its rest.
_LEAST_APART = 256


def keep_request(connection: Connection, ask: Ask) -> JsonObject:
    """Store what is new of a request; the answer is what read_request needs to give all of it back."""
    rollout_id, body, speaks_chat = ask.identity.rollout_id, ask.body, ask.api == "chat"
    told_elsewhere = {"messages", "tools"} if speaks_chat else {"tools"}
    apart = {
        name: kept
        for name, value in body.items()
        if name not in told_elsewhere and (kept := _keep_apart(connection, rollout_id, name, value))
    }
    rest = {name: _TAKEN_OUT if name in told_elsewhere or name in apart else value for name, value in body.items()}
    return {
        "messages": _keep_chain(connection, rollout_id, ask.messages),
        "tools": _keep(connection, rollout_id, body["tools"]) if "tools" in body else None,
        "rest": _keep(connection, rollout_id, rest),
        "differing": _differing(body.get("messages"), ask.messages) if speaks_chat else None,
        "apart": apart,
        "chat": None if ask.chat is ask.body else _keep(connection, rollout_id, _less_messages(ask.chat)),
    }


class Requests:
    """Requests of one rollout, whole again; shared messages are parsed once."""

    def __init__(self, connection: Connection, rollout_id: str) -> None:
        self._connection = connection
        self._rollout_id = rollout_id
        self._chains: dict[str, list[Any]] = {}

    def messages(self, kept: JsonObject) -> list[Any]:
        """The messages as the engine was to see them."""
        return self._chain(kept["messages"])

    def request(self, kept: JsonObject) -> JsonObject:
        """The client's body."""
        body: JsonObject = self._row(kept["rest"])[1]
        if "messages" in body and kept["differing"] is not None:
            body["messages"] = _undo(kept["differing"], self.messages(kept))
        if kept["tools"] is not None:
            body["tools"] = self._row(kept["tools"])[1]
        return body | {name: self._apart(place) for name, place in kept.get("apart", {}).items()}

    def chat_request(self, kept: JsonObject) -> JsonObject | None:
        """The same in chat form, less its messages; None where the client's body is that already."""
        name = kept.get("chat")
        return None if name is None else dict(self._row(name)[1])

    def _apart(self, place: JsonObject) -> Any:
        if "chain" in place:
            return self._chain(place["chain"])
        if "items" in place:
            return [self._row(name)[1] for name in place["items"]]
        return self._row(place["value"])[1]

    def _chain(self, last: str | None) -> list[Any]:
        """A list by the hash of its last item; empty where there is none."""
        links, step = list[tuple[str, Any]](), last
        while step is not None and step not in self._chains:
            previous, body = self._row(step)
            links.append((step, body))
            step = previous.hex() if previous else None
        chain = [*self._chains.get(step or "", []), *(body for _, body in reversed(links))]
        if last is not None:
            self._chains[last] = chain
        return chain

    def _row(self, name: str) -> tuple[bytes | None, Any]:
        row = self._connection.execute(_READ, (self._rollout_id, bytes.fromhex(name))).fetchone()
        return row["previous"], json.loads(row["body"])


def _less_messages(chat: JsonObject) -> JsonObject:
    return {name: value for name, value in chat.items() if name != "messages"}


def _keep_chain(connection: Connection, rollout_id: str, messages: Sequence[Any]) -> str | None:
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


def _keep_apart(connection: Connection, rollout_id: str, name: str, value: Any) -> JsonObject | None:
    """Where a part of a body is kept by itself; None where it is too small for that."""
    if isinstance(value, list) and name in _GROWING:
        return {"chain": _keep_chain(connection, rollout_id, value)}
    if len(json.dumps(value)) < _LEAST_APART:
        return None
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        # One by one: of a system text in blocks, one block changes with each request and the others never do.
        return {"items": [_keep(connection, rollout_id, item) for item in value]}
    return {"value": _keep(connection, rollout_id, value)}


def _keep(connection: Connection, rollout_id: str, value: Any) -> str:
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
