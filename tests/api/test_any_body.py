"""Whatever a body holds, in whatever API: an answer of the documented kind, and no trace of what was refused."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from tests.api.bodies import spoiled
from tests.api.harness import ADD
from tests.api.test_response_items import EVERYTHING, FULL_INPUT
from tests.fakes import FakeEngine
from tests.served import RolloutClient, served, settings_for
from tests.test_docs import ERRORS, table

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ],
    "tools": [ADD],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 1,
    "max_tokens": 3,
    "n": 1,
    "stop": ["x"],
    "seed": 1,
    "stream": False,
    "chat_template_kwargs": {"enable_thinking": False},
}
COMPLETION: dict[str, Any] = {
    "model": "m",
    "prompt": "hi",
    "max_tokens": 3,
    "logprobs": 1,
    "n": 1,
    "stop": ["x"],
    "echo": False,
    "best_of": 1,
    "suffix": None,
    "stream": False,
    "stream_options": {"include_usage": True},
    "logit_bias": {"1": 1},
}
# A request of the client's: told and done with. The engine's own refusals are calls, and on record as such.
REFUSALS = {row[0].strip("`") for row in table(ERRORS, "request errors") if row[1].startswith("4")}
ASKED_AND_FAILED = {"engine_refused", "context_length_exceeded", "engine_error", "missing_ids"}


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutClient]:
    """One rollout of one proxy for all bodies."""
    with (
        FakeEngine(request.param, max_model_len=400) as engine,
        served(settings_for(tmp_path_factory.mktemp("any"), engine.url)) as proxy,
    ):
        yield proxy.rollout()
        assert engine.is_alive


def check(client: RolloutClient, path: str, body: dict[str, Any]) -> None:
    before = _count(client)
    text = json.dumps(body, allow_nan=False).encode()
    answer = client.http.post(path, content=text, headers={"content-type": "application/json"})
    after = _count(client)
    if answer.status_code == httpx.codes.OK:
        return
    code = answer.json()["error"]["code"]
    assert 400 <= answer.status_code < 500, answer.text
    assert code in REFUSALS | ASKED_AND_FAILED, answer.text
    assert after == before or code in ASKED_AND_FAILED, answer.text


def _count(client: RolloutClient) -> int:
    shown = client.proxy.control.get(f"/rollouts/{client.rollout_id}").json()
    return int(shown["counts"]["calls"])


BOUNDED = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@BOUNDED
@given(body=spoiled(CHAT))
def test_any_body_of_chat(client: RolloutClient, body: dict[str, Any]) -> None:
    """Read, or refused by name."""
    check(client, "/chat/completions", body)


@BOUNDED
@given(body=spoiled(EVERYTHING, FULL_INPUT))
def test_any_body_of_responses(client: RolloutClient, body: dict[str, Any]) -> None:
    """Read, or refused by name."""
    check(client, "/responses", body)


@BOUNDED
@given(body=spoiled(COMPLETION))
def test_any_body_of_completions(client: RolloutClient, body: dict[str, Any]) -> None:
    """Read, or refused by name."""
    check(client, "/completions", body)
