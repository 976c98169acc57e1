"""What engines' refusals mean for the caller, whatever form they come in."""

import errno
import json
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from proxy.engine.answer import Answer, told_error
from proxy.engine.refusal import error_frame, refused, unreached
from tests.fakes.sglang.request import refuse as sglang_refuses
from tests.fakes.vllm.request import refuse as vllm_refuses

NESTED = {"error": {"message": "m", "type": "t", "param": "p", "code": 400}}
FLAT = {"object": "error", "message": "m", "type": "t", "param": "p", "code": 400}


@pytest.mark.parametrize("body", [NESTED, FLAT])
@pytest.mark.parametrize(
    ("status", "told", "code", "may_retry"),
    [
        (400, 400, "engine_refused", False),
        (404, 404, "engine_refused", False),
        (413, 413, "engine_refused", False),
        (422, 400, "engine_refused", False),
        (401, 502, "engine_error", True),
        (403, 502, "engine_error", True),
        (429, 429, "engine_busy", True),
        (503, 503, "engine_busy", True),
        (500, 502, "engine_error", True),
        (502, 502, "engine_error", True),
    ],
)
def test_a_status_says_whose_fault_it_is(body: Any, status: int, told: int, code: str, *, may_retry: bool) -> None:
    """4xx for what the client did, 5xx only where a retry can help."""
    fault = refused(status, json.dumps(body).encode())

    assert (fault.status, fault.code, fault.may_retry) == (told, code, may_retry)
    assert "m" in fault.message


@pytest.mark.parametrize("status", [400, 429, 500, 502, 503])
@pytest.mark.parametrize("body", [b"<html>502 Bad Gateway</html>", b"", b"\xff\xfe", b"[]", b'"x"', b"[" * 9999])
def test_a_body_that_is_no_error_is_shown_with_its_status(status: int, body: bytes) -> None:
    """An HTML page never becomes an empty object."""
    fault = refused(status, body)

    assert (fault.status, fault.code) == (502, "engine_error")
    assert str(status) in fault.message
    assert len(fault.message) < 500


def test_fastapis_detail_is_an_error() -> None:
    """Both engines answer unknown paths with it."""
    assert refused(404, b'{"detail": "Not Found"}').message == "Not Found"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (NESTED, "m"),
        (FLAT, "m"),
        ({"detail": "m"}, "m"),
        ({"error": "m"}, "m"),
        ({"tokens": []}, "the page"),
        (None, "the page"),
    ],
)
def test_small_questions_are_refused_in_the_same_forms(body: Any, told: str) -> None:
    """/tokenize tells a template's complaint as chat tells its own; what is no error is shown as it came."""
    assert told_error(Answer(400, body, "the page")) == told


@pytest.mark.parametrize(("header", "pause"), [("7", 7), (None, 1), ("soon", 1), ("Wed, 21 Oct 2026 07:28:00 GMT", 1)])
def test_a_busy_engine_says_when_to_come_back(header: str | None, pause: int) -> None:
    """Its own word where that is a number of seconds."""
    assert refused(429, json.dumps(NESTED).encode(), header).retry_after_s == pause


@pytest.mark.parametrize(
    "body",
    [
        vllm_refuses("This model's maximum context length is 10 tokens.", "input_tokens", value=11).body,
        sglang_refuses("The input (11 tokens) is longer than the model's context length (10 tokens).").body,
        sglang_refuses("Requested token count exceeds the model's maximum context length of 10 tokens.").body,
    ],
)
def test_an_overflow_is_recognised(body: Any) -> None:
    """Each engine's own sentence gets the code that harnesses know."""
    fault = refused(400, json.dumps(body).encode())

    assert (fault.status, fault.code, fault.may_retry) == (400, "context_length_exceeded", False)


@pytest.mark.parametrize(
    "body",
    [
        vllm_refuses("max_tokens must be at least 1, got 0.", "max_tokens", value=0).body,
        sglang_refuses("max_completion_tokens is too large: 9.").body,
    ],
)
def test_a_mention_of_max_tokens_is_no_overflow(body: Any) -> None:
    """The other way round."""
    assert refused(400, json.dumps(body).encode()).code == "engine_refused"


def test_a_reply_with_choices_is_no_error_frame() -> None:
    """vLLM puts `error: null` into chunks."""
    assert error_frame({"choices": [{}], "error": None}) is None
    assert error_frame({"choices": [], "usage": {}}) is None


def test_whoever_runs_the_proxy_is_told_the_cause_too() -> None:
    """In the system's plain words; a harness reads the sentence alone."""
    key = ConnectionKey("engine", 80, is_ssl=False, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)
    fault = unreached(aiohttp.ClientConnectorError(key, ConnectionRefusedError(errno.ECONNREFUSED, "call failed")))

    assert fault.message == "the engine cannot be reached"
    assert fault.in_full == "the engine cannot be reached: Connection refused"
