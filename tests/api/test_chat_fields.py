"""The fields of chat completions that OpenAI's own client writes: what the engine is told of each."""

from typing import Any

import pytest

from tests.api.harness import ADD
from tests.api.test_sdk import sdk_of
from tests.fakes import FakeEngine
from tests.served import RolloutClient

HELLO: dict[str, Any] = {"role": "user", "content": "hello"}
PARTS: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


def sent(rollout: RolloutClient, engine: FakeEngine, *messages: Any, **fields: Any) -> dict[str, Any]:
    """What the engine is asked when the client asks this."""
    with sdk_of(rollout) as sdk:
        sdk.chat.completions.create(model="gpt-9", messages=list(messages or (HELLO,)), **fields)
    return dict(engine.requests[-1].body)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 9}, {"max_tokens": 5}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"response_format": SCHEMA}, {"response_format": SCHEMA}),
        ({"response_format": {"type": "text"}}, {"response_format": None}),
        ({"tools": [ADD]}, {"tools": [ADD], "tool_choice": "auto"}),
        ({"tools": [ADD], "tool_choice": "none"}, {"tools": [ADD], "tool_choice": "none"}),
        ({"tools": [ADD], "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"user": "u", "store": True, "metadata": {"a": "b"}}, {"user": None, "store": None, "metadata": None}),
        ({"n": 2}, {"n": 1}),
    ],
    ids=str,
)
def test_a_field_reaches_the_engine(rollout: RolloutClient, engine: FakeEngine, fields: Any, told: Any) -> None:
    """Under the name that engines know, or not at all."""
    body = sent(rollout, engine, **fields)

    assert {name: body.get(name) for name in told} == told


def test_what_is_not_passed_on_is_told(rollout: RolloutClient, engine: FakeEngine) -> None:
    """In the record."""
    sent(rollout, engine, user="u", store=True, metadata={"a": "b"}, service_tier="flex")

    assert rollout.call()["sampling"]["ignored"] == ["metadata", "service_tier", "store", "user"]


def test_parts_and_developers_arrive(rollout: RolloutClient, engine: FakeEngine) -> None:
    """Parts as they are; a developer's words under a role that the template prints."""
    body = sent(rollout, engine, {"role": "developer", "content": "be brief"}, PARTS)
    role = "developer" if engine._engine.kind == "vllm" else "system"

    assert body["messages"] == [{"role": role, "content": "be brief"}, PARTS]
    assert rollout.call()["messages"][0]["role"] == "developer"


def test_the_prompt_holds_what_a_developer_says(rollout: RolloutClient, engine: FakeEngine) -> None:
    """Read off the ids that the engine computed on."""
    sent(rollout, engine, {"role": "developer", "content": "be brief"}, HELLO)

    assert "be brief" in bytes(token for token in rollout.call()["prompt_token_ids"] if token < 256).decode()
