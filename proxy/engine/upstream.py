"""The only file that asks engines anything. It knows HTTP and nothing of what the bodies mean.

httpx over aiohttp's transport: several times the rate of httpx's own (bench/README.md). Two of that transport's habits
matter here: a refused connection and a failed look-up surface as ConnectTimeout, and a body cut short as ReadError.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from copy import copy
from urllib.parse import urlsplit

import httpx

from proxy.engine.answer import LONGEST_EXCERPT, Answer, parsed
from proxy.engine.connections import Connections
from proxy.engine.gate import Gates, Passage
from proxy.engine.names import exchange_name
from proxy.engine.refusal import WIRE_ERRORS, cut, died_before_reply, refused, stalled, unreached
from proxy.engine.sse import read_data
from proxy.errors import EngineFault
from proxy.model import EngineRef, EngineRequest, JsonObject

STREAM_END = b"[DONE]"


class Events:
    """The events of one reply, to be read once, and what became of it at the engine's gate."""

    def __init__(self, events: AsyncIterator[JsonObject], passage: Passage) -> None:
        self._events = events
        self._passage = passage

    def __aiter__(self) -> AsyncIterator[JsonObject]:
        return self._events

    @property
    def is_disturbed(self) -> bool:
        """Whether a call of another sampling class shared a batch with this one so far."""
        return self._passage.is_disturbed


class Upstream:
    """HTTP towards engines; no call is generated but through the engine's gate."""

    def __init__(
        self, *, connect_s: float, silence_s: float, probe_s: float, reply_bytes: int, gates: Gates | None = None
    ) -> None:
        self.gates = gates or Gates()
        self._timeout = httpx.Timeout(silence_s, connect=connect_s, pool=None)
        self._probe_timeout = httpx.Timeout(probe_s, connect=min(connect_s, probe_s))
        self._reply_bytes = reply_bytes
        self._silence_s = silence_s
        self.connections = Connections(self._timeout)

    async def aclose(self) -> None:
        await self.connections.aclose()

    @asynccontextmanager
    async def apart(self) -> AsyncIterator["Upstream"]:
        """The same for the block, over new connections of its own: what leads to an engine now."""
        async with aclosing(copy(self)) as other:
            other.connections = Connections(self._timeout)
            yield other

    async def question(
        self,
        url: str,
        path: str,
        body: JsonObject | None = None,
        *,
        api_key: str | None = None,
        patience_s: float | None = None,
    ) -> Answer:
        """GET, or POST where there is a body; raises EngineFault only when no answer came within the patience."""
        patience = self._probe_timeout if patience_s is None else httpx.Timeout(patience_s)
        try:
            response = await self.connections.client.request(
                "POST" if body is not None else "GET",
                url + path,
                content=_encode(body) if body is not None else None,
                headers=_headers(api_key),
                timeout=patience,
            )
        except WIRE_ERRORS as error:
            raise unreached(error) from error
        return Answer(response.status_code, parsed(response.content), response.text[:LONGEST_EXCERPT])

    async def stays_open(self, url: str, seconds: float) -> bool:
        """Whether a connection on which nothing happens is still open after so long. Raises EngineFault."""
        parts = urlsplit(url)
        is_https = parts.scheme == "https"
        request = f"GET {parts.path}/v1/models HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: keep-alive\r\n\r\n"
        try:
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port or (443 if is_https else 80), ssl=is_https or None
            )
        except OSError as error:
            raise EngineFault("engine_unreachable", 502, "the engine cannot be reached", detail=str(error)) from error
        try:
            writer.write(request.encode())
            async with asyncio.timeout(seconds):
                while await reader.read(2**16):
                    pass
        except TimeoutError:
            return True
        except ConnectionError:
            return False
        finally:
            writer.close()
        return False

    @asynccontextmanager
    async def ask(self, engine: EngineRef, request: EngineRequest, tag: str) -> AsyncIterator[Events]:
        """Send a generation request when its turn has come; inside the block, iterate over the events of the reply.

        A whole reply is one event. Raises EngineFault: refused, error, unreachable, stalled, cut, malformed or too
        large. Leaving the block closes the connection, which makes the engine drop what it still computes.
        """
        async with self.gates.passage(engine, request.body) as passage:
            response = await self._send(engine, request, tag)
            try:
                if response.status_code != httpx.codes.OK:
                    raise await self._refusal(response)
                yield Events(self._events(response), passage)
            finally:
                await response.aclose()

    async def _send(self, engine: EngineRef, request: EngineRequest, tag: str) -> httpx.Response:
        """Open the reply; a connection that dies before its first byte is tried once more."""
        try:
            try:
                return await self._send_once(engine, request.path, request.body, tag)
            except WIRE_ERRORS as error:
                if not died_before_reply(error):
                    raise
                return await self._send_once(engine, request.path, _under_another_name(request.body, tag), tag)
        except WIRE_ERRORS as error:
            raise unreached(error) from error

    async def _send_once(self, engine: EngineRef, path: str, body: JsonObject, tag: str) -> httpx.Response:
        headers = _headers(engine.api_key) | {"x-request-id": tag}
        client = self.connections.client
        built = client.build_request("POST", engine.url + path, content=_encode(body), headers=headers)
        return await client.send(built, stream=True)

    async def _refusal(self, response: httpx.Response) -> EngineFault:
        try:
            body = b"".join([part async for part in self._parts(response)])
        except WIRE_ERRORS as error:
            return cut(error)
        return refused(response.status_code, body, response.headers.get("retry-after"))

    async def _events(self, response: httpx.Response) -> AsyncIterator[JsonObject]:
        try:
            if "text/event-stream" in response.headers.get("content-type", ""):
                async for data in read_data(self._parts(response)):
                    if data.strip() == STREAM_END:
                        return
                    yield _event(data)
            else:
                yield _event(b"".join([part async for part in self._parts(response)]))
        except WIRE_ERRORS as error:
            raise cut(error) from error

    async def _parts(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body piece by piece, up to the limit. Silence is timed here: a broken peer can hang the transport."""
        received, parts = 0, aiter(response.aiter_bytes())
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    part = await anext(parts, None)
            except TimeoutError:
                raise stalled() from None
            if part is None:
                return
            received += len(part)
            if received > self._reply_bytes:
                raise EngineFault("reply_too_large", 502, f"the engine's reply is over {self._reply_bytes} bytes")
            yield part


def _event(data: bytes) -> JsonObject:
    event = parsed(data)
    if isinstance(event, dict):
        return event
    excerpt = data.decode("utf-8", "replace")[:LONGEST_EXCERPT]
    raise EngineFault("engine_malformed", 502, f"the engine sent something that is not a JSON object: {excerpt!r}")


def _under_another_name(body: JsonObject, tag: str) -> JsonObject:
    """For a second try: the engine may be at work on the first, and SGLang takes no two requests of one name."""
    return {**body, "rid": exchange_name(tag)} if "rid" in body else body


def _encode(body: JsonObject) -> bytes:
    """JSON in ASCII: lone surrogates, which UTF-8 cannot carry, survive as escapes."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {"content-type": "application/json"}
    return headers | {"authorization": f"Bearer {api_key}"} if api_key else headers
