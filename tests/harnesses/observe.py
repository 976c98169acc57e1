"""What is seen in a performance, told in the words of the table."""

from collections.abc import Iterable, Sequence

from tests.harnesses.harness import Json
from tests.harnesses.heard import text_of
from tests.harnesses.script import LOOK
from tests.harnesses.stage import Performance


def is_whole(call: Json) -> bool:
    """Done, with a seed, and with prompt, sampled ids and a logprob for each."""
    ids, logprobs = call["completion_token_ids"], call["logprobs"]
    is_done = call["state"] == "done" and call["capture"]["complete"] and call["seed"]["value"] is not None
    return bool(is_done and call["prompt_token_ids"] and ids and len(ids) == len(logprobs))


def recorded(performance: Performance) -> str:
    """Calls that are whole, of what the engine was asked."""
    return f"{sum(map(is_whole, performance.calls))} of {performance.engine_requests}"


def parents(calls: Iterable[Json]) -> str:
    """Parents that were found, of the calls in which some reply of this rollout is told."""
    calls = list(calls)
    told = {said for call in calls if (said := said_by(call))}
    followers = [call for call in calls if tells_any(call, told)]
    found = [call for call in followers if call["parent"]["outcome"] == "resolved"]
    return f"{len(found)} of {len(followers)}"


def prefixes(calls: Iterable[Json]) -> str:
    """Exact prefixes that were proven, of those that could be given."""
    eligible = [call for call in calls if call["prefix"]["eligible"]]
    supplied = [call for call in eligible if call["prefix"]["supplied"]]
    return f"{len(supplied)} of {len(eligible)}" if eligible else "none to give"


def said_by(call: Json) -> str:
    """A call's own reply, in a form that survives whatever clients make of it: its words, else its calls' ids."""
    message = call["message"] or {}
    ids = [tool_call["id"] for tool_call in message.get("tool_calls") or ()]
    return ids[0] if ids else (message.get("content") or "").strip()


def tells_any(call: Json, told: Iterable[str]) -> bool:
    """Some assistant message of the request tells one of these."""
    assistants = [message for message in call["messages"] if message["role"] == "assistant"]
    return any(said in f"{text_of(message)} {message.get('tool_calls')}" for message in assistants for said in told)


RULES = {
    "title": "side_rule_title_call",
    "commit message": "side_rule_commit_message",
    "memory": "side_rule_memory_extraction",
}
"""Why calls are left out, by what they are for."""


def side_calls(performance: Performance) -> Sequence[Json]:
    """Calls that the trajectory leaves out as no part of the task."""
    branches = [branch for branch in performance.trajectory["branches"] if branch["kind"] == "side"]
    ids = {call_id for branch in branches for call_id in branch["owned_call_ids"]}
    return [call for call in performance.calls if call["call_id"] in ids]


def purpose(call: Json) -> str:
    """What a side call is for, by the words that it begins with."""
    told = text_of(call["messages"][0]).lower()
    return next((word for word in ("memory", "commit message", "title") if word in told), "?")


def side_branches(performance: Performance) -> set[tuple[str, int]]:
    """Why each branch of calls beside the task is one, and how many of its tokens are trained on."""
    branches = [branch for branch in performance.trajectory["branches"] if branch["kind"] == "side"]
    return {(reason, sum(branch["loss_mask"])) for branch in branches for reason in branch["trainable"]["reasons"]}


def left_out(performance: Performance) -> dict[str, str]:
    """Why calls stand in no branch that is trained on, by their ids."""
    return {one["call_id"]: one["reason"] for one in performance.trajectory["excluded"]}


def lost(calls: Iterable[Json]) -> set[str]:
    """Why calls in which some reply is told have no parent."""
    calls = list(calls)
    told = {said for call in calls if (said := said_by(call))}
    return {call["parent"]["reason"] for call in calls if tells_any(call, told) and not call["parent"]["call_id"]}


def counted_once(performance: Performance) -> bool:
    """Every call that was done is owned by one branch, every other by none."""
    owned = [call_id for branch in performance.trajectory["branches"] for call_id in branch["owned_call_ids"]]
    return sorted(owned) == sorted(call["call_id"] for call in performance.calls if call["state"] == "done")


def claims(performance: Performance) -> int:
    """Requests that claimed the draw of an earlier one."""
    return sum(reading["claim"] is not None for call in performance.calls for reading in call["deliveries"])


def of_sub_agent(performance: Performance) -> Sequence[Json]:
    """The calls of the agent that the task was handed to."""
    return [
        call
        for call in performance.calls
        if any(LOOK in text_of(message) for message in call["messages"] if message["role"] == "user")
    ]


def signals(calls: Iterable[Json]) -> set[str]:
    """The headers by which these calls tell who they are of."""
    return {name for call in calls for name in call["lane_signals"]}


def kinds_of(performance: Performance, calls: Iterable[Json]) -> set[str]:
    """The kinds of the branches that own these calls."""
    ids = {call["call_id"] for call in calls}
    branches = performance.trajectory["branches"]
    return {branch["kind"] for branch in branches if ids & set(branch["owned_call_ids"])}
