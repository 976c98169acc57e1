"""Anthropic's own client against a rollout, and the raw wire beside it."""

import json
from collections.abc import Iterable
from typing import Any

import anthropic
import httpx

from tests.served import RolloutClient

Json = dict[str, Any]

ADD: Any = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
ADD_IN_CHAT = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": ADD["input_schema"]},
}


def hello(text: str = "hello", **fields: Any) -> Json:
    """A Messages body."""
    return {"model": "claude", "max_tokens": 300, "messages": [{"role": "user", "content": text}], **fields}


def sdk_of(client: RolloutClient, **fields: Any) -> anthropic.Anthropic:
    """The official client of one rollout: it checks every reply against its own types, and never retries."""
    created = client.created
    given = {"base_url": created["anthropic_base_url"], "api_key": created["api_key"], "max_retries": 0}
    return anthropic.Anthropic(**{**given, "_strict_response_validation": True, **fields})


def post(client: RolloutClient, body: Any, path: str = "/messages") -> httpx.Response:
    return client.http.post(path, json=body)


def events(client: RolloutClient, body: Json) -> list[tuple[str, Json]]:
    """The events of one streamed call, by name, as they stood on the wire."""
    with client.http.stream("POST", "/messages", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return list(_events(response.iter_lines()))


def _events(lines: Iterable[str]) -> Iterable[tuple[str, Json]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
        else:
            assert line == "", line


def refusal(answer: httpx.Response) -> Json:
    """The error of a reply in Anthropic's form."""
    body = answer.json()
    assert (set(body), body["type"]) == ({"type", "error"}, "error"), body
    assert set(body["error"]) == {"type", "message"}, body
    error: Json = body["error"]
    return error
