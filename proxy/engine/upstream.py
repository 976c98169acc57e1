"""The only file that opens sockets to engines. It knows HTTP and nothing of what the bodies mean.

httpx over aiohttp's transport: several times the rate of httpx's own (bench/README.md). Two of that transport's habits
matter here: a refused connection and a failed look-up surface as ConnectTimeout, and a body cut short as ReadError.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from proxy.canonical import strict_json
from proxy.engine.gate import Gates, Passage
from proxy.engine.sse import read_data
from proxy.errors import EngineFault
from proxy.ids import are_ids
from proxy.model import EngineRef, EngineRequest, JsonObject

# Both engines' servers close idle connections after 5 s; reusing one at that moment is a spurious failure.
KEEPALIVE_EXPIRY_S = 2.0
LONGEST_EXCERPT = 300
LONGEST_MESSAGE = 2000
STREAM_END = b"[DONE]"
# The transport translates most of aiohttp's exceptions into httpx's; an answer that is no HTTP at all comes as its own.
WIRE_ERRORS = (httpx.HTTPError, aiohttp.ClientError)
WireError: TypeAlias = httpx.HTTPError | aiohttp.ClientError
# Longer pauses than this are no advice that a client could follow.
LONGEST_RETRY_AFTER_S = 3600


@dataclass(frozen=True, slots=True)
class Answer:
    """A small reply, read whole: for questions about the engine itself."""

    status: int
    body: Any
    """Parsed JSON, or None where it was none."""
    text: str


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


def decoded_text(answer: Answer) -> str | None:
    """The text in an answer of /detokenize, under SGLang's name or vLLM's; None where there is none."""
    told = answer.body if answer.status == 200 and isinstance(answer.body, dict) else {}
    text = told.get("text", told.get("prompt"))
    return text if isinstance(text, str) else None


def rendered_ids(answer: Answer) -> tuple[int, ...] | None:
    """The ids in an answer of /tokenize; None where there are none."""
    told = answer.body.get("tokens") if answer.status == 200 and isinstance(answer.body, dict) else None
    return tuple(told) if told and are_ids(told) else None


def told_error(answer: Answer) -> str:
    """What an error answer says is wrong; its text where it is no error that is known."""
    error = _error_object(answer.body)
    return _message(error) if error is not None else answer.text


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
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=KEEPALIVE_EXPIRY_S)
        self._client = httpx.AsyncClient(transport=AiohttpTransport(limits=limits), timeout=self._timeout)

    async def aclose(self) -> None:
        await self._client.aclose()

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
            response = await self._client.request(
                "POST" if body is not None else "GET",
                url + path,
                content=_encode(body) if body is not None else None,
                headers=_headers(api_key),
                timeout=patience,
            )
        except WIRE_ERRORS as error:
            raise _unreached(error) from error
        return Answer(response.status_code, _parsed(response.content), response.text[:LONGEST_EXCERPT])

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
        built = self._client.build_request(
            "POST",
            engine.url + request.path,
            content=_encode(request.body),
            headers=_headers(engine.api_key) | {"x-request-id": tag},
        )
        try:
            try:
                return await self._client.send(built, stream=True)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, aiohttp.ServerDisconnectedError):
                return await self._client.send(built, stream=True)
        except WIRE_ERRORS as error:
            raise _unreached(error) from error

    async def _refusal(self, response: httpx.Response) -> EngineFault:
        try:
            body = b"".join([part async for part in self._parts(response)])
        except WIRE_ERRORS as error:
            return _cut(error)
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
            raise _cut(error) from error

    async def _parts(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body piece by piece, up to the limit. Silence is timed here: a broken peer can hang the transport."""
        received, parts = 0, aiter(response.aiter_bytes())
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    part = await anext(parts, None)
            except TimeoutError:
                raise _stalled() from None
            if part is None:
                return
            received += len(part)
            if received > self._reply_bytes:
                raise EngineFault("reply_too_large", 502, f"the engine's reply is over {self._reply_bytes} bytes")
            yield part


def refused(status: int, body: bytes, retry_after: str | None = None) -> EngineFault:
    """What an engine's error status means for the caller: most 4xx are its own, the rest are the engine's."""
    error = _error_object(_parsed(body))
    if error is None:
        text = body.decode("utf-8", "replace").strip()[:LONGEST_EXCERPT]
        message = f"the engine answered {status} without a JSON error: {text!r}"
        return EngineFault("engine_error", 502, message, engine_status=status)
    message = _message(error)
    if status in {429, 503}:
        pause = _seconds(retry_after)
        return EngineFault("engine_busy", status, message, retry_after_s=pause, engine_status=status)
    if status in {401, 403}:
        message = f"the engine refused the proxy's own credentials: {message}"
        return EngineFault("engine_error", 502, message, engine_status=status)
    if 400 <= status < 500:
        return _refused_ask(status, message, error.get("param"))
    return EngineFault("engine_error", 502, f"the engine answered {status}: {message}", engine_status=status)


def _seconds(retry_after: str | None) -> int:
    """A Retry-After in seconds; 1 where it is absent, a date or no number."""
    text = (retry_after or "").strip()
    return min(int(text), LONGEST_RETRY_AFTER_S) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _refused_ask(status: int, message: str, param: Any) -> EngineFault:
    """What the client asked cannot be answered; no retry mends it."""
    named = param if isinstance(param, str) else None
    code = "context_length_exceeded" if _is_overflow(message, named) else "engine_refused"
    told = 400 if status == 422 else status
    return EngineFault(code, told, message, param=named, may_retry=False, engine_status=status)


def error_frame(event: JsonObject) -> EngineFault | None:
    """The fault that an event stands for, where it is an error and no part of a reply."""
    error = _error_object(event)
    if error is None or event.get("choices"):
        return None
    return EngineFault("engine_error", 502, f"the engine failed in mid-reply: {_message(error)}")


def _error_object(body: Any) -> JsonObject | None:
    """The error in OpenAI's nested form, SGLang's flat one, or FastAPI's detail."""
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("error"), dict):
        return dict(body["error"])
    if body.get("error"):
        return {"message": body["error"]}
    if body.get("object") == "error":
        return body
    return {"message": body["detail"]} if "detail" in body else None


def _message(error: JsonObject) -> str:
    return str(error.get("message") or error)[:LONGEST_MESSAGE]


def _is_overflow(message: str, param: str | None) -> bool:
    """Whether a refusal says that prompt and reply do not fit the context: both engines' own sentences."""
    return param == "input_tokens" or "context length" in message or "maximum input length" in message


def _event(data: bytes) -> JsonObject:
    event = _parsed(data)
    if isinstance(event, dict):
        return event
    excerpt = data.decode("utf-8", "replace")[:LONGEST_EXCERPT]
    raise EngineFault("engine_malformed", 502, f"the engine sent something that is not a JSON object: {excerpt!r}")


def _parsed(body: bytes) -> Any:
    """The JSON value, or None: also where a number is none that JSON knows, since no record could hold it."""
    try:
        return strict_json(body)
    except (ValueError, RecursionError):
        return None


def _encode(body: JsonObject) -> bytes:
    """JSON in ASCII: lone surrogates, which UTF-8 cannot carry, survive as escapes."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {"content-type": "application/json"}
    return headers | {"authorization": f"Bearer {api_key}"} if api_key else headers


def _unreached(error: WireError) -> EngineFault:
    """No byte of a reply arrived, or none that is HTTP."""
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return EngineFault("engine_stalled", 504, "the engine did not begin to answer in time")
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return EngineFault("engine_malformed", 502, "the engine's answer is no HTTP", detail=_cause(error))
    return EngineFault("engine_unreachable", 502, "the engine cannot be reached", detail=_cause(error))


def _stalled() -> EngineFault:
    return EngineFault("engine_stalled", 504, "the engine fell silent in the middle of its reply")


def _cut(error: WireError) -> EngineFault:
    """The reply broke off."""
    if isinstance(error, httpx.ReadTimeout):
        return _stalled()
    # pi asks again after an error in mid-stream only where it reads that a connection was lost.
    return EngineFault("engine_cut", 502, "connection lost: the engine's reply broke off", detail=_cause(error))


def _cause(error: WireError) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}"[:LONGEST_EXCERPT]
