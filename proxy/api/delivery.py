"""One client's reading of a growing reply: the status line, the events or the body, and what became of it.

The client may leave at any moment; that ends this reading, not the turn.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proxy import clock
from proxy.api.chat import ChatView
from proxy.errors import ProxyError, StoreDown, error_headers, openai_error
from proxy.model import Completion, Delivery, DeliveryOutcome
from proxy.running import Running

CALL_ID_HEADER = "x-rollpin-call-id"

log = structlog.get_logger()


@dataclass(slots=True)
class Sent:
    """What has gone to the client's socket."""

    events: int = 0
    outcome: DeliveryOutcome = "client_gone"


class DeliveryResponse(Response):
    """Sends one growing reply to one client, and notes how far it came."""

    def __init__(self, running: Running, view: ChatView, note: Callable[[Delivery], Awaitable[None]]) -> None:
        self._running = running
        self._view = view
        self._note = note
        self.background = None
        self.status_code = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        started, sent = clock.now(), Sent()
        with self._running.reader():
            await self._race(receive, send, sent)
        await self._write_down(started, sent)

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
        if self._running.plan.ask.stream:
            await self._send_stream(send, sent)
        else:
            await self._send_whole(send, sent)

    async def _send_whole(self, send: Send, sent: Sent) -> None:
        verdict = await self._running.verdict()
        if isinstance(verdict, Completion):
            await self._answer(send, 200, self._view.whole(verdict), {})
            sent.events, sent.outcome = 1, "delivered"
        else:
            await self._answer_error(send, verdict, sent)

    async def _send_stream(self, send: Send, sent: Sent) -> None:
        """Events as they come; the status waits for the first, so that an early failure is a plain error."""
        async for event in self._running.read():
            for chunk in self._view.chunks(event):
                if not sent.events:
                    await self._begin(send, 200, {"content-type": "text/event-stream", "cache-control": "no-cache"})
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                sent.events += 1
        verdict = await self._running.verdict()
        if isinstance(verdict, Completion):
            await self._close(send, self._view.stream_end())
            sent.outcome = "delivered"
        elif sent.events:
            await self._close(send, self._view.stream_error(verdict))
            sent.outcome = "error_told"
        else:
            await self._answer_error(send, verdict, sent)

    async def _answer_error(self, send: Send, error: ProxyError, sent: Sent) -> None:
        body = json.dumps(openai_error(error)).encode()
        await self._answer(send, error.status, body, error_headers(error))
        sent.outcome = "error_told"

    async def _answer(self, send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
        length = {"content-type": "application/json", "content-length": str(len(body))}
        await self._begin(send, status, headers | length)
        await self._close(send, body)

    async def _begin(self, send: Send, status: int, headers: dict[str, str]) -> None:
        named = headers | {CALL_ID_HEADER: self._running.plan.call_id}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})

    async def _close(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _write_down(self, started: float, sent: Sent) -> None:
        delivery = Delivery(self._running.plan.call_id, started, clock.now(), sent.outcome, sent.events)
        try:
            await self._note(delivery)
        except StoreDown as error:
            log.warning("a delivery was not noted", call_id=delivery.call_id, reason=error.message)


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
