"""What an API is to the engine behind it, and the one that needs no telling again."""

from collections.abc import Sequence
from typing import Any, Protocol

from proxy.sim.ask import Ask, Event, Refusal
from proxy.sim.template import Json


class Api(Protocol):
    """How a client's body is put in chat form, and how the engine's own words are told to it."""

    @property
    def closing(self) -> bytes:
        """What comes after the last event of a stream."""
        ...

    def to_chat(self, body: Json) -> Json:
        """The body as one of chat; `Refusal` where it has no such form."""
        ...

    def whole(self, ask: Ask, reply: Json) -> Json:
        """A whole reply."""
        ...

    def events(self, ask: Ask, events: Sequence[Event]) -> list[Event]:
        """A streamed reply, each event told of as many tokens as the one that it was made of."""
        ...

    def error(self, status: int, error: Json) -> Json:
        """The body of a refusal."""
        ...

    def broken(self, ask: Ask, told: Sequence[Event], status: int, error: Json) -> Event:
        """The event that ends a stream in which so much has been told."""
        ...


class Own:
    """Chat and plain completions: told as the engine tells them."""

    closing = b"data: [DONE]\n\n"

    def to_chat(self, body: Json) -> Json:
        """As it came."""
        return body

    def whole(self, ask: Ask, reply: Json) -> Json:  # noqa: ARG002  as Api has it
        """As it is."""
        return reply

    def events(self, ask: Ask, events: Sequence[Event]) -> list[Event]:  # noqa: ARG002  as Api has it
        """As they are."""
        return list(events)

    def error(self, status: int, error: Json) -> Json:  # noqa: ARG002  as Api has it
        """As the engine has it."""
        return error

    def broken(self, ask: Ask, told: Sequence[Event], status: int, error: Json) -> Event:  # noqa: ARG002  as Api has it
        """The error, which no event of chat has a name for."""
        return Event(error, 0)


OWN = Own()


def message_of(error: Json) -> str:
    """The words of an engine's own error, nested or flat."""
    return str((error.get("error") or error).get("message"))


def unreadable(message: str) -> Refusal:
    """A body that has no chat form."""
    return Refusal(400, {"error": {"message": message}})


def passed(body: Json, fields: Sequence[str]) -> Json:
    """The fields that mean the same in chat."""
    return {name: body[name] for name in fields if body.get(name) is not None}


def text(value: Any) -> str:
    """A value that must be text; raises TypeError where it is not."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def texts(parts: Any) -> list[str]:
    """The text of each part that has any; a text alone is one part. Raises TypeError where a text is none."""
    return [parts] if isinstance(parts, str) else [text(part["text"]) for part in parts or () if "text" in part]
