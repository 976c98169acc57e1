"""Request line and headers: bounded. Too many are told in the caller's form; without end they end the connection.

uvicorn's parser keeps whatever arrives until a request's headers are whole, and has no bound of its own.
"""

from contextlib import suppress

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proxy.api.forms import form_for
from proxy.body import read_body
from proxy.errors import BodyTooLarge, HeadersTooLarge

# Harnesses send some two thousand bytes; other servers stop at 8 to 64 KiB.
MOST_HEAD_BYTES = 64 * 1024
# A client that is still sending sees our answer only once its headers were taken; beyond this we hang up instead.
MOST_KEPT_BYTES = 1024 * 1024


class HeaderLimit:
    """Answers 431 where request line and headers are longer than they may be; the rest goes on to the application."""

    def __init__(self, app: ASGIApp, body_bytes: int) -> None:
        self._app = app
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (size := head_bytes(scope)) <= MOST_HEAD_BYTES:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        # Taken first, or the answer may be lost on a client that is still sending.
        with suppress(BodyTooLarge, ClientDisconnect):
            await read_body(request, self._body_bytes)
        error = HeadersTooLarge(f"URL and headers have {size} bytes; at most {MOST_HEAD_BYTES} are taken: send fewer")
        told = form_for(request.url.path, request.headers)(error)
        await JSONResponse(told.body, told.status, told.headers)(scope, receive, send)


def head_bytes(scope: Scope) -> int:
    """How long the URL and the headers of a request are."""
    headers = sum(len(name) + len(value) for name, value in scope["headers"])
    return headers + len(scope["raw_path"]) + len(scope["query_string"])


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's connection, which hangs up on headers, or trailers, that do not end."""

    _piled = 0
    """Bytes since a request began, or since a piece of its body: no more than these can lie in the parser."""

    def data_received(self, data: bytes) -> None:
        self._piled += len(data)
        super().data_received(data)
        if self._piled > MOST_KEPT_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._piled = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._piled = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._piled = 0
        super().on_message_complete()
