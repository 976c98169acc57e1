"""The worked example: a coding agent with two sub-agents at once, a best-of-n step and a title call.

It holds on a simulated engine and on a real one: what the engine says is of no account, only what is made of it.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.served import RolloutClient

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
SESSION = {"user-agent": "claude-cli/2.1.332 (external, cli)", "x-claude-code-session-id": "s-1"}
SYSTEM = {"role": "system", "content": "You are a coding agent."}
SUB_SYSTEM = {"role": "system", "content": "You are a sub-agent."}
Message = dict[str, Any]


class Agent:
    """One agent's conversation; sub-agents are told by their header."""

    def __init__(self, rollout: RolloutClient, agent_id: str | None, task: str, fields: Mapping[str, Any]) -> None:
        self._rollout = rollout
        self._headers = SESSION | ({"x-claude-code-agent-id": agent_id} if agent_id else {})
        self._fields = fields
        self.messages: list[Message] = [SUB_SYSTEM if agent_id else SYSTEM, {"role": "user", "content": task}]

    def ask(self, n: int = 1, **fields: Any) -> list[Message]:
        """The choices of one turn."""
        body = {"model": "policy", "messages": self.messages, "tools": TOOLS, **self._fields, "n": n, **fields}
        answer = self._rollout.http.post("/chat/completions", json=body, headers=self._headers)
        assert answer.status_code == 200, answer.text
        return [choice["message"] for choice in answer.json()["choices"]]

    def go_on(self, said: Message, news: str) -> None:
        """Echo a reply, and what came of it."""
        self.messages = [*self.messages, said, *results_of(said), {"role": "user", "content": news}]


def results_of(said: Message) -> list[Message]:
    """A model that called tools is answered."""
    return [{"role": "tool", "tool_call_id": one["id"], "content": "done"} for one in said.get("tool_calls") or ()]


def play(rollout: RolloutClient, **fields: Any) -> None:
    """Main turn; both sub-agents' first turns at once; best of three; their second turns at once; the last turn."""
    main = Agent(rollout, None, "Mend the build.", fields)
    subs = [Agent(rollout, name, f"Look into {name}.", fields) for name in ("a-1", "a-2")]
    title = Agent(rollout, None, "Mend the build.", fields)
    title.ask(model="small", tools=[])
    main.go_on(main.ask()[0], "Three ideas, please.")
    with ThreadPoolExecutor(3) as threads:
        firsts = [threads.submit(sub.ask) for sub in subs]
        ideas = threads.submit(main.ask, 3)
        for sub, first in zip(subs, firsts, strict=True):
            sub.go_on(first.result()[0], "And then?")
        main.go_on(ideas.result()[1], "Take the second.")
    with ThreadPoolExecutor(2) as threads:
        for second in [threads.submit(sub.ask) for sub in subs]:
            second.result()
    main.ask()


def lane_of(call: Mapping[str, Any]) -> str:
    return str(call["lane_signals"].get("x-claude-code-agent-id", "main"))


def check_example(trajectory: dict[str, Any], calls: list[dict[str, Any]]) -> None:
    """Every call where it belongs, and every mask as the laws say, whatever was said."""
    known = {call["call_id"]: call for call in calls}
    (title,) = (call for call in calls if call["requested_model"] == "small")
    ideas = [call for call in calls if len([one for one in calls if one["request_id"] == call["request_id"]]) == 3]
    unused = {call["call_id"] for call in ideas if call["seed"]["choice"] != 1}
    owned = {one: branch for branch in trajectory["branches"] for one in branch["owned_call_ids"]}

    assert len(calls) == 10
    assert {one["call_id"]: one["reason"] for one in trajectory["excluded"]} == {
        title["call_id"]: "side_other_model",
        **dict.fromkeys(unused, "unused_choice"),
    }
    assert set(owned) == set(known) - unused - {title["call_id"]}
    for call_id, branch in owned.items():
        assert branch["kind"] == ("main" if lane_of(known[call_id]) == "main" else "subagent")
        assert {lane_of(known[one]) for one in branch["call_ids"]} == {lane_of(known[call_id])}
    generated = sum(len(known[one]["completion_token_ids"]) for one in owned)
    assert sum(sum(branch["loss_mask"]) for branch in trajectory["branches"]) == generated > 0
    assert trajectory["health"]["trained_tokens"] == generated
    for branch in trajectory["branches"]:
        assert branch["trainable"]["value"]
        assert len(branch["token_ids"]) == len(branch["loss_mask"]) == len(branch["logprobs"])
        assert all(
            logprob == 0 for logprob, flag in zip(branch["logprobs"], branch["loss_mask"], strict=True) if not flag
        )
