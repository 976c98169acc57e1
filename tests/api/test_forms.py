"""Errors in the form of the API that was called."""

import pytest

from proxy.api.forms import anthropic_form, form_for, openai_form
from proxy.errors import (
    BadAsk,
    BodyTooLarge,
    Busy,
    EngineFault,
    EngineUnready,
    Forbidden,
    HeadersTooLarge,
    LimitReached,
    NotFound,
    ProfileRefused,
    ProxyError,
    RolloutClosed,
    StoreDown,
    WrongKey,
)

# What an error is to Anthropic's clients: its status and its type there.
TOLD: list[tuple[ProxyError, int, str]] = [
    (BadAsk("no"), 400, "invalid_request_error"),
    (WrongKey("no"), 401, "authentication_error"),
    (Forbidden("no"), 403, "permission_error"),
    (NotFound("no"), 404, "not_found_error"),
    (RolloutClosed("no"), 410, "invalid_request_error"),
    (BodyTooLarge("no"), 413, "request_too_large"),
    (HeadersTooLarge("no"), 431, "invalid_request_error"),
    (Busy("no"), 429, "rate_limit_error"),
    (LimitReached("no"), 429, "rate_limit_error"),
    (ProxyError("no"), 500, "api_error"),
    (EngineFault("engine_cut", 502, "no"), 502, "api_error"),
    (EngineUnready("no"), 529, "overloaded_error"),
    (StoreDown("no"), 529, "overloaded_error"),
    (ProfileRefused("no"), 503, "api_error"),
    (EngineFault("engine_stalled", 504, "no"), 504, "timeout_error"),
]
MESSAGES = ["/v1/messages", "/v1/messages/count_tokens", "/rollouts/r/v1/messages", "/rollouts/r/messages/nowhere"]
OTHERS = ["/v1/chat/completions", "/rollouts/messages/v1/responses", "/rollouts/messages", "/v1/messagesx", "/"]


@pytest.mark.parametrize(("error", "status", "kind"), TOLD, ids=[error.code for error, _, _ in TOLD])
def test_anthropics_clients_read_their_own_types(error: ProxyError, status: int, kind: str) -> None:
    """Where a retry helps against being overloaded, the status is the one that they know for it."""
    told = anthropic_form(error)

    assert (told.status, told.body) == (status, {"type": "error", "error": {"type": kind, "message": "no"}})
    assert (told.headers.get("x-should-retry") == "false") is not error.may_retry
    assert told.headers["x-rollpin-error"] == error.code


def test_an_overflow_is_told_in_the_words_that_harnesses_look_for() -> None:
    """Claude Code compacts its conversation when it reads them."""
    told = anthropic_form(BadAsk("9 of 8", code="context_length_exceeded"))

    assert told.body["error"]["message"] == "prompt is too long: 9 of 8"


@pytest.mark.parametrize("path", MESSAGES)
def test_the_path_tells_the_form(path: str) -> None:
    """Before anything of the request is understood."""
    assert form_for(path, {}) is anthropic_form


@pytest.mark.parametrize("path", OTHERS)
def test_other_paths_have_openais_form(path: str) -> None:
    """The control plane's too; a rollout may be called `messages`."""
    assert form_for(path, {}) is openai_form


@pytest.mark.parametrize("path", OTHERS)
def test_anthropics_clients_show_themselves_where_the_path_does_not(path: str) -> None:
    """By a header that all of them send."""
    assert form_for(path, {"anthropic-version": "2023-06-01"}) is anthropic_form
