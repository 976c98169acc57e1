"""A chat reply taken to pieces, and told again piece by piece: a whole reply is a stream of one event."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from proxy.sim.ask import Event
from proxy.sim.template import Json


@dataclass(frozen=True, slots=True)
class Piece:
    """One addition to a reply. A `call` opens a call and has the tool's name, `arguments` extend it."""

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a reply ended."""

    finish: str | None
    matched: int | str | None
    usage: Json
    """In chat's names; empty where it was not told."""


class Teller(Protocol):
    """Tells one reply in the words of another API; the payloads of its events have their name as `type`."""

    def begin(self) -> Iterator[Json]:
        """What comes before the first piece."""
        ...

    def tell(self, piece: Piece) -> Iterator[Json]:
        """What a piece adds."""
        ...

    def end(self, ending: Ending) -> Iterator[Json]:
        """What comes after the last piece."""
        ...


def retell(events: Sequence[Event], teller: Teller) -> list[Event]:
    """The events of a chat reply, or the one payload that a whole reply is, as the teller tells them."""
    told = [Event(payload, 0, payload["type"]) for payload in teller.begin()]
    for event in events:
        for piece in _pieces(event.payload):
            told.extend(Event(payload, event.tokens, payload["type"]) for payload in teller.tell(piece))
    ending = _ending([event.payload for event in events])
    told.extend(Event(payload, events[-1].tokens, payload["type"]) for payload in teller.end(ending))
    return told


def _pieces(payload: Json) -> Iterator[Piece]:
    for choice in payload["choices"]:
        said = choice.get("delta") or choice.get("message") or {}
        if reasoning := said.get("reasoning") or said.get("reasoning_content"):
            yield Piece("reasoning", reasoning)
        if said.get("content"):
            yield Piece("content", said["content"])
        for call in said.get("tool_calls") or ():
            function = call["function"]
            if function.get("name"):
                yield Piece("call", function["name"], call["id"])
            if function.get("arguments"):
                yield Piece("arguments", function["arguments"])


def _ending(payloads: Sequence[Json]) -> Ending:
    ends = [choice for payload in payloads for choice in payload["choices"] if choice["finish_reason"]]
    usages = [payload["usage"] for payload in payloads if payload.get("usage")]
    last = ends[-1] if ends else {}
    matched = last.get("stop_reason", last.get("matched_stop"))
    return Ending(last.get("finish_reason"), matched, usages[-1] if usages else {})
