"""OpenAI's Responses API, as both engines serve it: nothing is kept, so nothing can be referred to."""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.sim.apis.api import message_of
from proxy.sim.apis.pieces import retell
from proxy.sim.apis.responses.body import to_chat
from proxy.sim.apis.responses.reply import Items
from proxy.sim.ask import Ask, Event
from proxy.sim.template import Json


@dataclass(frozen=True, slots=True)
class Responses:
    """The API of one kind of engine; a stream ends with the response and needs no other mark."""

    extra: tuple[str, ...] = ()
    """Fields of the body that this engine takes as in chat, and the other does not."""
    closing = b""

    def to_chat(self, body: Json) -> Json:
        """The body as one of chat."""
        return to_chat(body, self.extra)

    def whole(self, ask: Ask, reply: Json) -> Json:
        """A `response`."""
        response: Json = retell([Event(reply, 0)], Items(ask))[-1].payload["response"]
        return response

    def events(self, ask: Ask, events: Sequence[Event]) -> list[Event]:
        """From `response.created` to the response as it ended."""
        return retell(events, Items(ask))

    def error(self, status: int, error: Json) -> Json:
        """The engine's words, nested, whichever way it has them in chat."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message_of(error), "type": kind, "param": None, "code": status}}

    def broken(self, ask: Ask, told: Sequence[Event], status: int, error: Json) -> Event:  # noqa: ARG002  as Api has it
        """A `response.failed` under the next number."""
        failed = Items(ask).failed(message_of(error), number=len(told))
        return Event(failed, 0, failed["type"])
