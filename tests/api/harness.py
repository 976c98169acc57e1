"""What a harness does with a proxy, well or badly: reads streams, leaves early, sends what it should not."""

import asyncio
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from proxy.errors import StoreDown
from tests.patience import PATIENCE_S
from tests.served import RolloutClient, ServedProxy

Json = dict[str, Any]
Found = TypeVar("Found")

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
# A silence or a grace that no test waits out.
FOREVER = 600.0


def until(look: Callable[[], Found], seconds: float = PATIENCE_S) -> Found:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.005)
    return found


def asked(text: str = "hello", **fields: Any) -> Json:
    """A chat request."""
    return {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}


def message_of(chunks: Iterable[Json]) -> Json:
    """The message that a client puts together from chunks."""
    message: Json = {}
    calls: dict[int, Json] = {}
    for chunk in chunks:
        for name, value in (chunk["choices"][0]["delta"] if chunk["choices"] else {}).items():
            if name == "tool_calls":
                for piece in value:
                    _add_piece(calls, piece)
            else:
                message[name] = value if name == "role" else message.get(name, "") + value
    message["content"] = message.get("content") or None
    return message | ({"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {})


def _add_piece(calls: dict[int, Json], piece: Json) -> None:
    known = calls.setdefault(piece["index"], {"id": None, "type": None, "function": {"name": "", "arguments": ""}})
    known["id"] = piece.get("id") or known["id"]
    known["type"] = piece.get("type") or known["type"]
    for name, text in piece.get("function", {}).items():
        known["function"][name] += text


def finish_of(chunks: Iterable[Json]) -> str | None:
    """The finish reason that the chunks tell, if any does."""
    told = [choice["finish_reason"] for chunk in chunks for choice in chunk.get("choices", ())]
    return next((reason for reason in told if reason), None)


def error_of(response: Any) -> Json:
    """The error of a reply in OpenAI's form."""
    body = response.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}, body
    error: Json = body["error"]
    return error


def deliveries(client: RolloutClient) -> list[str]:
    """How the deliveries of a rollout's one call ended, once one has."""
    return until(lambda: [delivery["outcome"] for delivery in client.call()["deliveries"] if delivery["outcome"]])


def until_left(client: RolloutClient) -> None:
    """Wait until it is noted that the first reader of a rollout's first call has left."""
    until(lambda: client.proxy.calls(client.rollout_id)[0]["deliveries"][0]["outcome"] == "client_gone")


class Reader(threading.Thread):
    """Reads one streamed call to its end, whatever that is, while the test looks on."""

    def __init__(self, client: RolloutClient, text: str = "hello", **fields: Any) -> None:
        super().__init__(name="reader", daemon=True)
        self._client = client
        self._body = asked(text, **{"stream": True, **fields})
        self.status: int | None = None
        self.lines: list[str] = []
        self.start()

    def run(self) -> None:
        with self._client.http.stream("POST", "/chat/completions", json=self._body) as response:
            self.status = response.status_code
            for line in response.iter_lines():
                self.lines.append(line)

    def ended(self) -> "Reader":
        """Itself, once the stream is over."""
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self

    @property
    def is_done(self) -> bool:
        """Whether the stream came to its proper end."""
        return "data: [DONE]" in self.lines

    @property
    def events(self) -> list[Json]:
        """The events so far."""
        told = [line.removeprefix("data: ") for line in list(self.lines) if line.startswith("data: ")]
        return [json.loads(line) for line in told if line != "[DONE]"]

    @property
    def heartbeats(self) -> int:
        """The signs of life so far."""
        return sum(line.startswith(":") for line in list(self.lines))

    @property
    def ends_in_signs_of_life(self) -> bool:
        """Whether the last that came is two comments."""
        newest = [line[:1] for line in list(self.lines) if line][-2:]
        return newest == [":", ":"]

    @property
    def chunks(self) -> list[Json]:
        """The events that are parts of a reply."""
        return [event for event in self.events if "error" not in event]

    @property
    def error(self) -> Json | None:
        """The error event that ended the stream, if one did."""
        last = self.events[-1] if self.events else {}
        error: Json | None = last.get("error")
        return error

    @property
    def text(self) -> str:
        """The words so far."""
        return str(message_of(self.chunks).get("content") or "")


class Leaver:
    """A client on a bare socket that can leave whenever it likes."""

    def __init__(self, client: RolloutClient, text: str = "hello", **fields: Any) -> None:
        target, body = urlsplit(client.created["base_url"]), json.dumps(asked(text, **fields)).encode()
        head = (
            f"POST {target.path}/chat/completions HTTP/1.1\r\nhost: {target.netloc}\r\n"
            f"authorization: Bearer {client.created['api_key']}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._socket = socket.create_connection((target.hostname, target.port or 80), timeout=PATIENCE_S)
        self._socket.sendall(head.encode() + body)
        self.received = b""

    def read_until(self, mark: bytes) -> None:
        """Read until the bytes hold this."""
        while mark not in self.received:
            part = self._socket.recv(65536)
            assert part, self.received
            self.received += part

    def reads_nothing(self, seconds: float) -> bool:
        """Whether not a byte comes for so long."""
        return not select.select([self._socket], [], [], seconds)[0]

    def leave(self) -> float:
        """Close the connection; the time before that."""
        before = time.monotonic()
        self._socket.close()
        return before


class Gate:
    """Stands before a proxy's store: lets records wait until it is opened, or refuses as a store that is down."""

    def __init__(self, proxy: ServedProxy) -> None:
        self._store = proxy.wiring.store
        self._is_open = False
        self.refuses_records = self.refuses_reservations = False
        self.waiting = 0
        """How often a record came so far."""
        proxy.wiring.store = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open(self) -> None:
        """Let everything through from now on."""
        self._is_open = True

    async def record(self, *told: Any) -> Any:
        self.waiting += 1
        if self.refuses_records and not self._is_open:
            raise StoreDown("the disk is full")
        while not self._is_open:  # noqa: ASYNC110  it is opened from another thread
            await asyncio.sleep(0.005)
        return await self._store.record(*told)

    async def reserve(self, *told: Any) -> Any:
        if self.refuses_reservations and not self._is_open:
            raise StoreDown("the disk is full")
        return await self._store.reserve(*told)
