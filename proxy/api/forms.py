"""Errors in the words of the API that was called: the body its clients parse, and what keeps them from useless retries.

Which API that is follows from the path, so that a wrong key or an unknown route is told in the caller's form too.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from proxy.errors import ProxyError, error_headers, openai_error
from proxy.model import JsonObject

# Below any base under which the Messages API is served, right or by a slip in the base URL.
MESSAGES_PATH = re.compile(r"(?:/rollouts/[^/]+)?(?:/v1)*/messages(?:/|$)")
ANTHROPIC_MARK = "anthropic-version"
# Anthropic's own status for a service that is up and has no room; its clients wait and come back.
OVERLOADED = 529
# The error types that Anthropic's clients know, by status; other 4xx are the request's fault, other 5xx the server's.
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
CODE_HEADER = "x-rollpin-error"
# What pi, opencode and Cline look for in the sentence of an error in mid-stream before they ask again.
PASSING = "provider returned error {status}: "
# What Claude Code looks for before it compacts a conversation; where two numbers follow, it knows by how much.
TOO_LONG = "prompt is too long: "
COUNTS = re.compile(r"\d+ tokens > \d+ maximum")


@dataclass(frozen=True, slots=True)
class Told:
    """An error as the clients of one API are told of it."""

    status: int
    body: JsonObject
    headers: dict[str, str]


ErrorForm: TypeAlias = Callable[[ProxyError], Told]


def openai_form(error: ProxyError) -> Told:
    """As OpenAI's clients read it; the control plane speaks so too."""
    return Told(error.status, openai_error(error), error_headers(error))


def openai_stream_error(error: ProxyError) -> JsonObject:
    """The last event of a stream that failed; with no status to go by, its sentence says that a retry can help."""
    told: JsonObject = openai_error(error)["error"]
    return {"error": {**told, "message": stream_message(error)}}


def stream_message(error: ProxyError) -> str:
    """The sentence of an error in mid-stream."""
    return PASSING.format(status=error.status) + error.message if error.may_retry else error.message


def anthropic_form(error: ProxyError) -> Told:
    """As Anthropic's clients read it. The body has no place for the stable code: that is in a header."""
    return Told(
        anthropic_status(error), anthropic_error(error), {**error_headers(error), CODE_HEADER: _printable(error.code)}
    )


def anthropic_status(error: ProxyError) -> int:
    """The error's own status, save that being overloaded has one of its own there."""
    return OVERLOADED if error.status == 503 and error.may_retry else error.status


def anthropic_error(error: ProxyError) -> JsonObject:
    """The error body that Anthropic's clients expect, as a reply and as an event alike."""
    status = anthropic_status(error)
    kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": _message(error)}}


def form_for(path: str, headers: Mapping[str, str]) -> ErrorForm:
    """The form for whoever sent a request."""
    return anthropic_form if is_anthropic(path, headers) else openai_form


def is_anthropic(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request is of an Anthropic client: by its path, else by the mark that all of them send."""
    return bool(MESSAGES_PATH.match(path)) or ANTHROPIC_MARK in headers


def _message(error: ProxyError) -> str:
    if error.code != "context_length_exceeded":
        return error.message
    by_how_much = COUNTS.search(error.message)
    return TOO_LONG + (by_how_much.group() if by_how_much else error.message)


def _printable(code: str) -> str:
    return code.encode("ascii", "replace").decode()
