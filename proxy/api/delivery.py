"""One client's reading of a growing reply: the status line, the events or the body, and what became of it.

The client may leave at any moment; that ends this reading, not the turn.
"""

import asyncio
import json
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy import clock
from proxy.api.forms import ErrorForm
from proxy.api.view import View
from proxy.deliveries import Deliveries
from proxy.errors import ProxyError
from proxy.model import Delivery, DeliveryOutcome
from proxy.turn import Served

CALL_ID_HEADER = "x-rollpin-call-id"
# OpenAI's clients show it in their errors; Qwen Code asks again after an error in mid-stream only where it is there.
REQUEST_ID_HEADER = "x-request-id"
BLANK = b" "


@dataclass(slots=True)
class Sent:
    """What has gone to the client's socket."""

    has_begun: bool = False
    """Whether the status line is out."""
    events: int = 0
    outcome: DeliveryOutcome = "client_gone"


class DeliveryResponse(Response):
    """Sends one growing reply to one client, and notes how far it came."""

    def __init__(
        self,
        served: Served,
        view: View,
        tell: ErrorForm,
        *,
        stream: bool,
        hold: bool,
        patience_s: float | None,
        deliveries: Deliveries,
    ) -> None:
        self._running = served.running
        self._delivery_id = served.delivery_id
        self._view = view
        self._tell = tell
        self._stream = stream
        self._hold = hold
        self._patience_s = patience_s
        self._deliveries = deliveries
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        sent = Sent()
        try:
            with self._running.reader():
                await self._race(receive, send, sent)
        except Exception:
            sent.outcome = "broken"
            await self._write_down(sent)
            raise
        await self._write_down(sent)

    async def _race(self, receive: Receive, send: Send, sent: Sent) -> None:
        """Send until done or until the client leaves, whichever is first."""
        sending = asyncio.ensure_future(self._send(send, sent))
        leaving = asyncio.ensure_future(_client_leaves(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except OSError:
            sent.outcome = "client_gone"
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send, sent: Sent) -> None:
        if not self._stream:
            await self._send_whole(send, sent)
            return
        if not self._hold or await self._ends_well(send, sent):
            await self._send_events(send, sent)
        await self._send_end(send, sent)

    async def _ends_well(self, send: Send, sent: Sent) -> bool:
        """Whether the reply came to its end, once that is known; until then nothing but signs of life."""
        while not await self._running.settled_within(self._patience_s):
            await self._send_part(send, sent, self._view.heartbeat)
        return not isinstance(await self._running.ending(), ProxyError)

    async def _send_events(self, send: Send, sent: Sent) -> None:
        """Events as they come; the status waits for the first, so that an early failure is a plain error.

        Where none comes for long, a comment shows that the reply is alive, and with it goes status 200.
        """
        position = 0
        while (events := await self._running.read_on(position, self._patience_s)) != ():
            if events is None:
                await self._send_part(send, sent, self._view.heartbeat)
                continue
            for item in events:
                for chunk in self._view.chunks(item.choice, item.event):
                    await self._send_part(send, sent, chunk)
                    sent.events += 1
            position += len(events)

    async def _send_end(self, send: Send, sent: Sent) -> None:
        ending = await self._running.ending()
        if isinstance(ending, ProxyError) and not sent.has_begun:
            await self._answer_error(send, ending, sent)
        elif isinstance(ending, ProxyError):
            await self._close(send, self._view.stream_error(ending))
            sent.outcome = "error_told"
        else:
            await self._send_part(send, sent, self._view.stream_end(ending))
            await self._close(send, b"")
            sent.outcome = "delivered"

    async def _send_whole(self, send: Send, sent: Sent) -> None:
        """The body once it is there; blanks until then where patience is set, since JSON may begin with them."""
        while await self._running.settled_within(self._patience_s) is False:
            if not sent.has_begun:
                await self._begin(send, 200, {"content-type": "application/json"})
                sent.has_begun = True
            await send({"type": "http.response.body", "body": BLANK, "more_body": True})
        ending = await self._running.ending()
        if isinstance(ending, ProxyError):
            await self._answer_error(send, ending, sent)
            return
        body = self._view.whole(ending)
        await (self._close(send, body) if sent.has_begun else self._answer(send, 200, body, {}))
        sent.events, sent.outcome = 1, "delivered"

    async def _send_part(self, send: Send, sent: Sent, part: bytes) -> None:
        if not sent.has_begun:
            await self._begin(send, 200, {"content-type": "text/event-stream", "cache-control": "no-cache"})
            sent.has_begun = True
        await send({"type": "http.response.body", "body": part, "more_body": True})

    async def _answer_error(self, send: Send, error: ProxyError, sent: Sent) -> None:
        told = self._tell(error)
        body = json.dumps(told.body).encode()
        if sent.has_begun:
            await self._close(send, body)
        else:
            await self._answer(send, told.status, body, told.headers)
        sent.outcome = "error_told"

    async def _answer(self, send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
        length = {"content-type": "application/json", "content-length": str(len(body))}
        await self._begin(send, status, headers | length)
        await self._close(send, body)

    async def _begin(self, send: Send, status: int, headers: dict[str, str]) -> None:
        head = self._running.head
        named = headers | {CALL_ID_HEADER: ", ".join(head.call_ids), REQUEST_ID_HEADER: head.request_id}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})

    async def _close(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _write_down(self, sent: Sent) -> None:
        await self._deliveries.note(Delivery(self._delivery_id, clock.now(), sent.outcome, sent.events))


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
