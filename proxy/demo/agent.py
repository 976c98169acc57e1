"""A small harness: an agent with one tool, as people write them, unaware of the proxy that it talks to."""

import json
import operator
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import httpx

from proxy.model import JsonObject

Ask = Callable[[list[JsonObject]], Awaitable[JsonObject]]

TASK = "What is 17 * 23? Use the calculator."
ANSWER = "391"
# What the harness's author found reasonable, and a trainer must not get.
ASKED: JsonObject = {"temperature": 0.2, "top_p": 0.9, "seed": 1234}
MODEL = "policy"
MOST_TURNS = 4
CALL_S = 60
ECHOED = ("role", "content", "reasoning_content", "tool_calls")
SUM = re.compile(r"\s*(-?\d+)\s*([-+*])\s*(-?\d+)\s*")
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
TOOLS: list[JsonObject] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Works out one sum of two whole numbers.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]


class AgentFailed(Exception):
    """The agent got no answer that it could use."""


async def solve(ask: Ask) -> list[JsonObject]:
    """Ask, call tools and ask again until the model is done; the whole conversation."""
    messages: list[JsonObject] = [{"role": "user", "content": TASK}]
    for _ in range(MOST_TURNS):
        reply = await ask(messages)
        messages.append({name: reply[name] for name in ECHOED if reply.get(name) is not None})
        calls = reply.get("tool_calls") or []
        if not calls:
            break
        messages.extend({"role": "tool", "tool_call_id": call["id"], "content": calculate(call)} for call in calls)
    return messages


def calculate(call: JsonObject) -> str:
    """The tool: what a call comes to, or what is wrong with it."""
    try:
        expression = json.loads(call["function"]["arguments"])["expression"]
        left, sign, right = SUM.fullmatch(expression).groups()  # type: ignore[union-attr]  # caught below
    except (ValueError, KeyError, TypeError, AttributeError):
        return "this is no sum of two whole numbers"
    return str(SIGNS[sign](int(left), int(right)))


def client_name() -> str:
    """What the agent speaks through."""
    return f"OpenAI SDK {version('openai')}" if find_spec("openai") else "plain HTTP (the OpenAI SDK is not installed)"


@asynccontextmanager
async def model_at(base_url: str, api_key: str) -> AsyncIterator[Ask]:
    """The model behind a base URL."""
    connect = _by_sdk if find_spec("openai") else _by_http
    async with connect(base_url, api_key) as ask:
        yield ask


@asynccontextmanager
async def _by_sdk(base_url: str, api_key: str) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI, OpenAIError  # noqa: PLC0415  not there in a plain install

    async with AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=CALL_S) as client:
        create: Any = client.chat.completions.create

        async def ask(messages: list[JsonObject]) -> JsonObject:
            try:
                completion = await create(model=MODEL, messages=messages, tools=TOOLS, **ASKED)
            except OpenAIError as error:
                raise AgentFailed(str(error)) from error
            return dict(completion.choices[0].message.model_dump())

        yield ask


@asynccontextmanager
async def _by_http(base_url: str, api_key: str) -> AsyncIterator[Ask]:
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, timeout=CALL_S, trust_env=False) as client:

        async def ask(messages: list[JsonObject]) -> JsonObject:
            body = {"model": MODEL, "messages": messages, "tools": TOOLS, **ASKED}
            answer = await client.post("/chat/completions", json=body)
            return dict(answer.raise_for_status().json()["choices"][0]["message"])

        yield ask
