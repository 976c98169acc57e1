"""The main path: the chain that ends in the last delivered call with tools of the lane that opened the rollout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from proxy.model import CallId
from proxy.trajectory.call_facts import CallFacts
from proxy.trajectory.lanes import Lane, main_lane


@dataclass(frozen=True, slots=True)
class MainPath:
    """Where the main agent's work ends, and how that was decided."""

    lane: str | None
    call_id: CallId | None
    reason: str


# What is looked for, in this order, and the reason that is recorded where it is found.
_PREFERENCES: tuple[tuple[str, Callable[[CallFacts], bool]], ...] = (
    ("last_delivered_with_tools", lambda call: call.has_tools and call.delivered_at is not None),
    ("last_delivered", lambda call: call.delivered_at is not None),
    ("last_recorded", lambda call: not call.unusable),
)


def find_main_path(calls: Sequence[CallFacts], lanes: Mapping[CallId, Lane]) -> MainPath:
    """The main path among calls that may be the main agent's."""
    lane = main_lane(calls, lanes)
    of_lane = [call for call in calls if lanes[call.call_id].key == lane]
    for reason, holds in _PREFERENCES:
        if found := [call for call in of_lane if holds(call)]:
            return _last(found, lane, reason)
    return MainPath(None, None, "no_calls")


def _last(calls: Sequence[CallFacts], lane: str | None, reason: str) -> MainPath:
    """The latest; of those that came at once the one that generated most, else the one asked first."""
    latest = max(call.delivered_at or 0.0 for call in calls)
    ties = [call for call in calls if (call.delivered_at or 0.0) == latest]
    if reason == "last_recorded":
        return MainPath(lane, calls[-1].call_id, reason)
    if len(ties) == 1:
        return MainPath(lane, ties[0].call_id, reason)
    longest = max(ties, key=lambda call: (call.generated, -call.order))
    return MainPath(lane, longest.call_id, f"{reason}_tie_by_generated_tokens")
