"""A proxy that is killed in the middle of a rollout, and a new one that goes on from the very same ids."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine, Fault, Say
from tests.patience import PATIENCE_S, until
from tests.test_crash import new_rollout, proxy_process, read_calls

AGENTS = ("main", "sub")
TURNS = 3
REPLY = Say("Well then.", reasoning="Hm, hm.")
# Both replies are in the middle when the kill comes, however late that is.
UNFINISHED = [Fault.stall(2, PATIENCE_S, REPLY)] * len(AGENTS)


class Agent:
    """One of two agents that share a rollout; it asks again until it is answered, as SDKs do."""

    def __init__(self, name: str, key: str) -> None:
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": f"You are {name}."}]
        self._headers = {"authorization": f"Bearer {key}", "x-claude-code-agent-id": name}

    def turn(self, base_url: str) -> bool:
        """Ask once; whether an answer came."""
        try:
            answer = httpx.post(
                f"{base_url}/chat/completions",
                json={"messages": self._messages},
                headers=self._headers,
                timeout=PATIENCE_S,
            )
        except httpx.HTTPError:
            return False
        assert answer.status_code == 200, answer.text
        said = answer.json()["choices"][0]["message"]
        # Reasoning is dropped, as many harnesses do: no render of this would be what was sampled.
        self._messages += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "Go on."}]
        return True


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_killed_proxy_goes_on_supplying(tmp_path: Path, kind: Any) -> None:
    """Two agents, a kill in the middle of each of their turns: every later call goes on from its parent's ids."""
    with FakeEngine(kind, max_model_len=20_000) as engine:
        engine.always(REPLY)
        with proxy_process(tmp_path, engine.url) as (_process, url):
            _base_url, key = new_rollout(url, "r")
        agents = [Agent(name, key) for name in AGENTS]
        for _turn in range(TURNS):
            asked = len(engine.requests) + len(agents)
            engine.script(*UNFINISHED)
            with proxy_process(tmp_path, engine.url) as (process, url):
                with ThreadPoolExecutor(len(agents)) as threads:
                    answered = [threads.submit(agent.turn, f"{url}/rollouts/r/v1") for agent in agents]
                    until(lambda asked=asked: len(engine.requests) == asked)
                    process.kill()
                assert not any(one.result() for one in answered)
            with proxy_process(tmp_path, engine.url) as (_process, url):
                assert all(agent.turn(f"{url}/rollouts/r/v1") for agent in agents)
        with proxy_process(tmp_path, engine.url) as (_process, url):
            calls = read_calls(url, "r")

    assert {failure["kind"] for call in calls for failure in call["earlier_failures"]} == {"proxy_died"}
    for name in AGENTS:
        mine = [call for call in calls if call["lane_signals"]["x-claude-code-agent-id"] == name]
        assert [call["state"] for call in mine] == ["done"] * TURNS
        assert [call["prefix"]["reason"] for call in mine] == ["first_turn"] + ["exact"] * (TURNS - 1)
        for earlier, later in pairwise(mine):
            so_far = earlier["prompt_token_ids"] + earlier["completion_token_ids"]
            assert later["prefix"]["supplied"]
            assert later["prompt_token_ids"][: len(so_far)] == so_far
