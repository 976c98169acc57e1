"""What it means for the caller that an engine refuses, fails in mid-reply, or cannot be heard at all."""

import os
from typing import Any, TypeAlias

import aiohttp
import httpx

from proxy.engine.answer import LONGEST_EXCERPT, error_object, message_of, parsed
from proxy.errors import EngineFault
from proxy.model import JsonObject

# The transport translates most of aiohttp's exceptions into httpx's; an answer that is no HTTP at all comes as its own.
WIRE_ERRORS = (httpx.HTTPError, aiohttp.ClientError)
WireError: TypeAlias = httpx.HTTPError | aiohttp.ClientError
# Longer pauses than this are no advice that a client could follow.
LONGEST_RETRY_AFTER_S = 3600


def refused(status: int, body: bytes, retry_after: str | None = None) -> EngineFault:
    """What an engine's error status means for the caller: most 4xx are its own, the rest are the engine's."""
    error = error_object(parsed(body))
    if error is None:
        text = body.decode("utf-8", "replace").strip()[:LONGEST_EXCERPT]
        message = f"the engine answered {status} without a JSON error: {text!r}"
        return EngineFault("engine_error", 502, message, engine_status=status)
    message = message_of(error)
    if status in {429, 503}:
        pause = _seconds(retry_after)
        return EngineFault("engine_busy", status, message, retry_after_s=pause, engine_status=status)
    if status in {401, 403}:
        message = f"the engine refused the proxy's own credentials: {message}"
        return EngineFault("engine_error", 502, message, engine_status=status)
    if 400 <= status < 500:
        return _refused_ask(status, message, error.get("param"))
    return EngineFault("engine_error", 502, f"the engine answered {status}: {message}", engine_status=status)


def _refused_ask(status: int, message: str, param: Any) -> EngineFault:
    """What the client asked cannot be answered; no retry mends it."""
    named = param if isinstance(param, str) else None
    code = "context_length_exceeded" if _is_overflow(message, named) else "engine_refused"
    told = 400 if status == 422 else status
    return EngineFault(code, told, message, param=named, may_retry=False, engine_status=status)


def _is_overflow(message: str, param: str | None) -> bool:
    """Whether a refusal says that prompt and reply do not fit the context: both engines' own sentences."""
    return param == "input_tokens" or "context length" in message or "maximum input length" in message


def _seconds(retry_after: str | None) -> int:
    """A Retry-After in seconds; 1 where it is absent, a date or no number."""
    text = (retry_after or "").strip()
    return min(int(text), LONGEST_RETRY_AFTER_S) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def error_frame(event: JsonObject) -> EngineFault | None:
    """The fault that an event stands for, where it is an error and no part of a reply."""
    error = error_object(event)
    if error is None or event.get("choices"):
        return None
    return EngineFault("engine_error", 502, f"the engine failed in mid-reply: {message_of(error)}")


def unreached(error: WireError) -> EngineFault:
    """No byte of a reply arrived, or none that is HTTP."""
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return EngineFault("engine_stalled", 504, "the engine did not begin to answer in time")
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return EngineFault("engine_malformed", 502, "the engine's answer is no HTTP", detail=_cause(error))
    return EngineFault("engine_unreachable", 502, "the engine cannot be reached", detail=_cause(error))


def died_before_reply(error: WireError) -> bool:
    """Whether there was a connection, and it ended before any answer: often one that the engine had let idle too long.

    The transport calls most of aiohttp's errors a ConnectTimeout; what happened is told by the cause.
    """
    cause = error.__cause__ or error
    is_lost = isinstance(cause, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return is_lost and not isinstance(cause, aiohttp.ClientConnectorError)


def stalled() -> EngineFault:
    return EngineFault("engine_stalled", 504, "the engine fell silent in the middle of its reply")


def cut(error: WireError) -> EngineFault:
    """The reply broke off."""
    if isinstance(error, httpx.ReadTimeout):
        return stalled()
    # pi asks again after an error in mid-stream only where it reads that a connection was lost.
    return EngineFault("engine_cut", 502, "connection lost: the engine's reply broke off", detail=_cause(error))


def _cause(error: WireError) -> str:
    """Why, in the system's words where it has some, else in the library's."""
    cause = error.__cause__ or error
    if isinstance(cause, TimeoutError):
        return "no connection in time"
    if isinstance(cause, aiohttp.ClientConnectorError) and cause.os_error.errno:
        number = cause.os_error.errno
        # Names that lead nowhere have numbers of their own.
        return os.strerror(number) if number > 0 else str(cause.os_error.strerror)
    return f"{type(cause).__name__}: {cause}"[:LONGEST_EXCERPT]
