"""Anthropic's Messages API, as both engines serve it in terms of chat."""

from collections.abc import Sequence

from proxy.sim.apis.api import message_of
from proxy.sim.apis.messages.body import to_chat
from proxy.sim.apis.messages.reply import Blocks
from proxy.sim.apis.pieces import retell
from proxy.sim.ask import Ask, Event
from proxy.sim.template import Json

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
"""Of errors, by status; any other is an `api_error`."""


class Messages:
    """The API; a stream ends with `message_stop` and needs no other mark."""

    closing = b""

    def to_chat(self, body: Json) -> Json:
        """The body as one of chat."""
        return to_chat(body)

    def whole(self, ask: Ask, reply: Json) -> Json:
        """A `message`."""
        blocks = Blocks(ask)
        retell([Event(reply, 0)], blocks)
        return blocks.message

    def events(self, ask: Ask, events: Sequence[Event]) -> list[Event]:
        """From `message_start` to `message_stop`."""
        return retell(events, Blocks(ask))

    def error(self, status: int, error: Json) -> Json:
        """The engine's words in Anthropic's envelope."""
        kind = KINDS.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message_of(error)}}

    def broken(self, ask: Ask, told: Sequence[Event], status: int, error: Json) -> Event:  # noqa: ARG002  as Api has it
        """An `error` event."""
        return Event(self.error(status, error), 0, "error")


MESSAGES = Messages()
