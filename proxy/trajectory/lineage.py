"""Whose tokens a call goes on from: parents by meaning as recorded, joins by tokens, and the tree of shared ids.

A parent by meaning is not always one by tokens: where the prompt was tokenised anew it does not extend the parent, and
the call hangs from the nearest ancestor that it does extend, or from none. The parent keeps all that is its own.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from proxy.model import PLAIN_PROMPT, CallId
from proxy.trajectory.call_facts import CallFacts
from proxy.trajectory.lanes import Lane


@dataclass(frozen=True, slots=True)
class Lineage:
    """Every call of a rollout, and the parent of each by meaning or by tokens."""

    calls: Mapping[CallId, CallFacts]
    parents: Mapping[CallId, CallId]
    """Recorded parents, and those that were joined."""
    joined: frozenset[CallId]
    """Unresolved calls and plain prompts whose parent was found by tokens."""
    continued: frozenset[CallId]
    """Calls that some later call goes on from."""

    def ancestors(self, call: CallFacts) -> Iterator[CallFacts]:
        """From the parent to the root, whatever became of them."""
        above = self.parents.get(call.call_id)
        while above is not None:
            yield self.calls[above]
            above = self.parents.get(above)

    def base(self, call: CallFacts, allowed: Collection[CallId]) -> CallFacts | None:
        """The nearest allowed ancestor whose tokens this call's prompt extends."""
        nearest = (one for one in self.ancestors(call) if one.call_id in allowed and call.extends(one))
        return next(nearest, None)


def recorded_parents(calls: Sequence[CallFacts]) -> dict[CallId, CallId]:
    """Parents as resolved when the calls were made; one that is not an earlier call of the rollout does not count."""
    order = {call.call_id: call.order for call in calls}
    return {
        call.call_id: call.parent_id
        for call in calls
        if call.parent_id is not None and order.get(call.parent_id, call.order) < call.order
    }


def read_lineage(calls: Sequence[CallFacts], lanes: Mapping[CallId, Lane]) -> Lineage:
    """Recorded parents, and for unresolved calls and plain prompts those that their tokens prove."""
    parents, joined = recorded_parents(calls), set[CallId]()
    for call in calls:
        if call.unusable or not (call.parent_outcome == "unresolved" or call.parent_reason == PLAIN_PROMPT):
            continue
        if (found := _by_tokens(call, calls, lanes, parents)) is not None:
            parents[call.call_id] = found
            joined.add(call.call_id)
    known = {call.call_id: call for call in calls}
    return Lineage(known, parents, frozenset(joined), continued=frozenset(parents.values()))


def _by_tokens(
    call: CallFacts,
    calls: Sequence[CallFacts],
    lanes: Mapping[CallId, Lane],
    parents: Mapping[CallId, CallId],
) -> CallId | None:
    """The one earlier call of the same lane that this prompt extends; a call and its ancestors count as one."""
    matches = [
        other
        for other in calls[: call.order]
        if not other.unusable
        and other.generated
        and lanes[other.call_id].key == lanes[call.call_id].key
        and call.extends(other)
    ]
    above = {parent for match in matches for parent in _all_above(match.call_id, parents)}
    ends = [match.call_id for match in matches if match.call_id not in above]
    return ends[0] if len(ends) == 1 else None


def _all_above(call_id: CallId, parents: Mapping[CallId, CallId]) -> Iterator[CallId]:
    above = parents.get(call_id)
    while above is not None:
        yield above
        above = parents.get(above)
