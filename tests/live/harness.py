"""What the live tests share: an engine with its proxy, and the questions that both are asked."""

import itertools
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from tests.live.engines.reference_client import Row, reference_logprobs
from tests.live.engines.start import Engine
from tests.served import RolloutClient, ServedProxy

# Recorded logprobs may differ from transformers' by this much, in nats.
LOGPROB_TOLERANCE = 1e-4
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
ADD_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
# Random weights call a tool only when every token is steered: the two markers and a call between them.
CALL_PATTERN = r'hi <tool_call>\n\{"name": "add", "arguments": \{"a": [0-9]{1,3}, "b": [0-9]{1,3}\}\}\n</tool_call>'

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Site:
    """A real engine and the proxy in front of it."""

    engine: Engine
    proxy: ServedProxy

    @property
    def kind(self) -> str:
        return self.engine.kind

    def rollout(self, group: str, sample: int = 0, **fields: Any) -> RolloutClient:
        """A new rollout in a run of its own, so that a group and sample can be drawn again."""
        return self.proxy.rollout(run=f"run-{next(_numbers)}", group=group, sample=sample, **fields)

    def forced_call(self) -> dict[str, Any]:
        """Fields that make the tiny model call the tool, in the engine's own words."""
        pattern = {"structured_outputs": {"regex": CALL_PATTERN}} if self.kind == "vllm" else {"regex": CALL_PATTERN}
        return {"tools": [ADD_TOOL], "max_tokens": 150, **pattern, **NO_THINKING}

    def direct(self, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's own answer, without the proxy."""
        answer = httpx.post(f"{self.engine.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def running_requests(self) -> int:
        """How many requests the engine is busy with, by its own count."""
        if self.kind == "sglang":
            loads = httpx.get(f"{self.engine.url}/v1/loads", timeout=30).json()["loads"]
            return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
        metrics = httpx.get(f"{self.engine.url}/metrics", timeout=30).text
        return int(sum(float(n) for n in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", metrics, re.MULTILINE)))


def tokens_of(client: RolloutClient, text: str, **fields: Any) -> tuple[int, ...]:
    """The sampled ids of one whole call."""
    answer = client.chat(text, **fields)
    assert answer.status_code == 200, answer.text
    return tuple(client.calls()[-1]["completion_token_ids"])


def at_once(work: list[Callable[[], Any]]) -> list[Any]:
    """Everything at the same time, results in order."""
    with ThreadPoolExecutor(len(work)) as threads:
        return [future.result() for future in [threads.submit(one) for one in work]]


def until(claim: Callable[[], bool], seconds: float) -> None:
    """Wait until a claim holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def largest_difference(engine: Engine, calls: list[dict[str, Any]]) -> float:
    """Between the recorded logprobs and those of transformers over the recorded ids on the same weights."""
    rows = [Row(prompt=call["prompt_token_ids"], completion=call["completion_token_ids"]) for call in calls]
    expected = reference_logprobs(engine, rows)
    return max(
        abs(ours - theirs)
        for call, row in zip(calls, expected, strict=True)
        for ours, theirs in zip(call["logprobs"], row, strict=True)
    )
