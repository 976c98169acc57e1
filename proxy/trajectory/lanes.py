"""Lanes: the main agent and its sub-agents, told by the headers of real harnesses, else by what they were told.

Without such headers a call is of its parent's lane, and a first turn of the lane of all that began with the same system
messages and tools: so a conversation that was compacted stays in its lane.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.model import CallId
from proxy.trajectory.call_facts import CallFacts

AGENT_SIGNAL = "x-claude-code-agent-id"
# Each names one thread of one agent; the first that is there counts.
THREAD_SIGNALS = ("thread-id", "x-session-id", "x-claude-code-session-id", "session-id", "x-litellm-session-id")
# Each says that whoever sent it is a sub-agent.
SUBAGENT_SIGNALS = (AGENT_SIGNAL, "x-codex-parent-thread-id", "x-parent-session-id", "x-openai-subagent")


@dataclass(frozen=True, slots=True)
class Lane:
    """One agent's share of a rollout."""

    key: str
    is_named: bool
    """Whether a header names it; if not, it was told by content."""
    is_subagent: bool
    """Whether a header says so."""


def named_lane(signals: Mapping[str, str]) -> Lane | None:
    """The lane that the headers name."""
    is_subagent = any(signals.get(name) for name in SUBAGENT_SIGNALS)
    for name in (AGENT_SIGNAL, *THREAD_SIGNALS, *SUBAGENT_SIGNALS):
        if signals.get(name):
            return Lane(f"{name}:{signals[name]}", is_named=True, is_subagent=is_subagent)
    return None


def read_lanes(calls: Sequence[CallFacts], parents: Mapping[CallId, CallId]) -> dict[CallId, Lane]:
    """The lane of every call."""
    lanes = dict[CallId, Lane]()
    for call in calls:
        parent = parents.get(call.call_id)
        inherited = lanes[parent] if parent is not None else None
        lanes[call.call_id] = named_lane(call.signals) or inherited or _told_by_content(call)
    return lanes


def main_lane(calls: Sequence[CallFacts], lanes: Mapping[CallId, Lane]) -> str | None:
    """The lane that opened the rollout: of the first call with tools that no header ascribes to a sub-agent."""
    owned = [call for call in calls if not lanes[call.call_id].is_subagent] or calls
    opening = next((call for call in owned if call.has_tools), None) or next(iter(owned), None)
    return lanes[opening.call_id].key if opening else None


def _told_by_content(call: CallFacts) -> Lane:
    return Lane(f"content:{call.opening}", is_named=False, is_subagent=False)
