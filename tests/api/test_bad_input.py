"""What a client should not send: refused with the field named, no engine asked, no call recorded."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.conftest import Start
from tests.api.harness import Json, asked, error_of
from tests.fakes import FakeEngine
from tests.served import RolloutClient, ServedProxy, served, settings_for

USER = {"role": "user", "content": "hi"}
BODIES: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "not JSON": b"hello",
    "half JSON": b'{"messages": [',
    "two values": b"{}{}",
    "invalid UTF-8": b'{"messages": "\xff\xfe"}',
    "a list": b"[]",
    "a text": b'"hello"',
    "a number": b"5",
    "null": b"null",
    "true": b"true",
    "NaN": b'{"temperature": NaN}',
    "infinity": b'{"temperature": Infinity}',
    "a number beyond all": b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
    "such a number inside": b'{"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"1": -1e999}}',
    "such a number in a dropped field": b'{"messages": [{"role": "user", "content": "hi"}], "x": 1e999}',
    "an endless number": b'{"seed": ' + b"9" * 5000 + b"}",
    "deep nesting": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
}
# Field, value, and the parameter that the answer names.
FIELDS: list[tuple[str, Any, str]] = [
    ("messages", None, "messages"),
    ("messages", [], "messages"),
    ("messages", "hi", "messages"),
    ("messages", {}, "messages"),
    ("messages", ["hi"], "messages[0]"),
    ("messages", [USER, None], "messages[1]"),
    ("messages", [USER | {"role": "robot"}], "messages[0].role"),
    ("messages", [USER | {"role": None}], "messages[0].role"),
    ("messages", [USER | {"role": ["user"]}], "messages[0].role"),
    ("messages", [{"content": "hi"}], "messages[0].role"),
    ("messages", [USER | {"content": 5}], "messages[0].content"),
    ("messages", [USER | {"content": {"text": "hi"}}], "messages[0].content"),
    ("messages", [USER | {"content": ["hi"]}], "messages[0].content"),
    ("messages", [{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
    ("messages", [{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls"),
    ("messages", [{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[0].tool_calls"),
    ("messages", [{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}], "messages[0].tool_calls"),
    ("stream", "yes", "stream"),
    ("stream", 1, "stream"),
    ("stream_options", "x", "stream_options"),
    ("stream_options", {"include_usage": "yes"}, "stream_options"),
    ("functions", [], "functions"),
    ("functions", [{"name": "f"}], "functions"),
    ("function_call", "auto", "function_call"),
    ("messages", [USER | {"role": "function", "name": "f"}], "messages[0].role"),
    ("messages", [{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
    ("n", 0, "n"),
    ("n", "x", "n"),
    ("n", 1.5, "n"),
    ("n", True, "n"),
    ("n", 100_000, "n"),
    ("model", 5, "model"),
    ("model", ["x"], "model"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", "many", "max_tokens"),
    ("max_tokens", 1.5, "max_tokens"),
    ("max_completion_tokens", 0, "max_completion_tokens"),
    ("seed", 1.5, "seed"),
    ("seed", 2**63, "seed"),
    ("seed", "7", "seed"),
    ("temperature", "hot", "temperature"),
    ("temperature", True, "temperature"),
    ("top_p", [1], "top_p"),
    ("top_k", {}, "top_k"),
    ("min_p", "0", "min_p"),
    ("repetition_penalty", "1", "repetition_penalty"),
    ("presence_penalty", "1", "presence_penalty"),
    ("frequency_penalty", "1", "frequency_penalty"),
    ("stop", 5, "stop"),
    ("stop", [5], "stop"),
    ("stop_token_ids", "x", "stop_token_ids"),
    ("stop_token_ids", [-1], "stop_token_ids"),
    ("logprobs", 5, "logprobs"),
    ("logprobs", "true", "logprobs"),
    ("tools", "x", "tools"),
    ("tools", {}, "tools"),
    ("tools", ["x"], "tools"),
    ("tools", [{"type": "function", "function": ["x"]}], "tools"),
    ("tool_choice", 5, "tool_choice"),
    ("tool_choice", ["x"], "tool_choice"),
    ("parallel_tool_calls", "yes", "parallel_tool_calls"),
    ("chat_template_kwargs", "x", "chat_template_kwargs"),
    ("chat_template_kwargs", ["x"], "chat_template_kwargs"),
    ("reasoning_effort", 5, "reasoning_effort"),
    ("continue_final_message", "yes", "continue_final_message"),
    ("documents", "x", "documents"),
    ("response_format", "json", "response_format"),
    ("structured_outputs", "x", "structured_outputs"),
    ("regex", 5, "regex"),
    ("ebnf", ["x"], "ebnf"),
    ("logit_bias", [1], "logit_bias"),
    ("logit_bias", "x", "logit_bias"),
    ("logit_bias", {"1": "x"}, "logit_bias"),
    ("logit_bias", {"x": 1}, "logit_bias"),
    ("bad_words", "x", "bad_words"),
    ("bad_words", [5], "bad_words"),
    ("allowed_token_ids", "x", "allowed_token_ids"),
    ("allowed_token_ids", [-1], "allowed_token_ids"),
    ("min_tokens", "x", "min_tokens"),
    ("min_tokens", -1, "min_tokens"),
    ("min_tokens", 1.5, "min_tokens"),
]  # fmt: skip
TOP_LOGPROBS = [-1, 21, "3", 1.5, True]
MEDIA = [
    {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
    {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    {"type": "image_url", "image_url": "http://example.org/a.png"},
    {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    {"type": "image_url", "image_url": {"url": "http://["}},
    {"type": "image_url", "image_url": {"url": None}},
    {"type": "image_url", "image_url": {}},
    {"type": "audio_url", "audio_url": {"url": "http://example.org/a.mp3"}},
    {"type": "video_url", "video_url": {"url": "ftp://example.org/a.mp4"}},
    {"type": "input_image", "image_url": "//example.org/a.png"},
    {"type": "text", "text": "hi", "image_url": {"url": "http://example.org/a.png"}},
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedProxy, FakeEngine]]:
    """One proxy and its engine, which nobody should ask."""
    with FakeEngine("vllm") as fake, served(settings_for(tmp_path_factory.mktemp("bad"), fake.url)) as proxy:
        yield proxy, fake


@pytest.fixture(scope="module")
def client(shared: tuple[ServedProxy, FakeEngine]) -> RolloutClient:
    """One rollout for all: none of these requests may leave a trace in it."""
    return shared[0].rollout(rollout_id="untouched")


@pytest.fixture(autouse=True)
def _nothing_happened(shared: tuple[ServedProxy, FakeEngine], client: RolloutClient) -> Iterator[None]:
    proxy, fake = shared
    before = (len(fake.requests), len(fake.refused), len(proxy.calls("untouched")))
    yield
    assert (len(fake.requests), len(fake.refused), len(proxy.calls("untouched"))) == before


def post(client: RolloutClient, body: bytes) -> httpx.Response:
    return client.http.post("/chat/completions", content=body, headers={"content-type": "application/json"})


def refused(answer: httpx.Response) -> Json:
    """The error of a 400 that no retry mends."""
    assert (answer.status_code, answer.headers.get("x-should-retry")) == (400, "false"), answer.text
    error = error_of(answer)
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("body", list(BODIES.values()), ids=list(BODIES))
def test_a_body_that_is_no_json_object_is_refused(client: RolloutClient, body: bytes) -> None:
    """A client's mistake is a 400, told once."""
    assert refused(post(client, body))["code"] == "invalid_json"


@pytest.mark.parametrize(("field", "value", "param"), FIELDS, ids=[f"{f}={v!r:.80}" for f, v, _ in FIELDS])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_field_of_the_wrong_type_is_named(
    client: RolloutClient, field: str, value: Any, param: str, *, stream: bool
) -> None:
    """All is checked before anything changes."""
    body = asked(stream=stream) | {field: value}

    assert refused(post(client, json.dumps(body).encode()))["param"] == param


def test_messages_are_required(client: RolloutClient) -> None:
    """Said in so many words."""
    assert "required" in refused(post(client, b'{"model": "m"}'))["message"]


@pytest.mark.parametrize("value", TOP_LOGPROBS, ids=str)
def test_top_logprobs_has_a_range(client: RolloutClient, value: Any) -> None:
    """Where logprobs are asked for."""
    assert refused(client.chat(logprobs=True, top_logprobs=value))["param"] == "top_logprobs"


@pytest.mark.parametrize("part", MEDIA, ids=str)
def test_media_that_the_engine_would_fetch_is_refused(client: RolloutClient, part: Json) -> None:
    """The engine stands inside the network; a harness's prompt does not."""
    answer = client.post(asked() | {"messages": [USER, {"role": "user", "content": [part]}]})

    assert refused(answer)["code"] == "media_url_refused"


def test_a_body_over_the_limit_is_413(client: RolloutClient) -> None:
    """The client reads the answer, though it was still sending."""
    answer = client.chat("x" * 60_000_000)

    assert (answer.status_code, answer.headers["x-should-retry"]) == (413, "false")
    assert error_of(answer)["code"] == "body_too_large"


def test_a_body_over_the_limit_without_a_length_is_413(client: RolloutClient) -> None:
    """Chunked, so that only counting tells."""
    chunks = (b" " * 1_000_000 for _ in range(52))
    answer = client.http.post("/chat/completions", content=chunks)

    assert error_of(answer)["code"] == "body_too_large"


def test_a_prompt_that_fills_the_context_is_told_before_the_engine_is_asked(client: RolloutClient) -> None:
    """In the words that harnesses look for."""
    assert refused(client.chat("x" * 5000, max_tokens=10))["code"] == "context_length_exceeded"


def test_a_strange_field_name_is_told(start: Start) -> None:
    """Where unknown fields are refused, whatever their names hold."""
    proxy, _ = start(unknown_fields="refuse")

    assert refused(post(proxy.rollout(), b'{"messages": [{"role": "user", "content": "x"}], "\\ud800": 1}'))["code"]


def test_media_from_an_allowed_host_passes(start: Start) -> None:
    """And from no other; data: URLs always may."""
    proxy, fake = start(media_hosts="example.org")
    client = proxy.rollout()
    urls = ["https://example.org/a.png", "data:image/png;base64,AA==", "https://example.org.evil.net/a.png"]
    contents = [[{"type": "image_url", "image_url": {"url": url}}] for url in urls]
    answers = [client.post(asked() | {"messages": [{"role": "user", "content": content}]}) for content in contents]

    assert [answer.status_code for answer in answers] == [200, 200, 400]
    assert [received.body["messages"][0]["content"] for received in fake.requests] == contents[:2]


def test_media_that_the_engine_would_leave_out_is_refused(start: Start) -> None:
    """SGLang says what its model understands, and shows it the conversation without the rest."""
    proxy, fake = start("sglang")
    client = proxy.rollout()
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    answer = client.post(asked() | {"messages": [{"role": "user", "content": [part]}]})

    assert refused(answer)["code"] == "media_unsupported"
    assert (fake.requests, proxy.calls(client.rollout_id)) == ([], [])
