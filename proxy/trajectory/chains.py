"""Chains of calls whose tokens extend one another, and which chain owns a call that several hold.

A call is owned once: by the chain that the main path goes through, else by its earliest child's. Children of another
lane take no call of their parent's with them, and calls that are not kept (side calls, unused choices, retries) own
themselves alone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from proxy.model import CallId
from proxy.trajectory.call_facts import CallFacts
from proxy.trajectory.lanes import Lane
from proxy.trajectory.lineage import Lineage


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls from a first turn, or what stands for one, to a last call; each one's prompt extends the one before."""

    calls: tuple[CallFacts, ...]
    owned: tuple[CallFacts, ...]
    """The last of the calls; those before them belong to other chains."""
    allowed: Collection[CallId]
    """The calls that this chain may hold or fork from."""

    @property
    def last(self) -> CallFacts:
        return self.calls[-1]

    @property
    def name(self) -> CallId:
        """Its last call's id: stays the same while the rollout grows elsewhere."""
        return self.last.call_id

    @property
    def shared(self) -> tuple[CallFacts, ...]:
        """The calls that are context here."""
        return self.calls[: len(self.calls) - len(self.owned)]


def kept_chains(
    kept: Sequence[CallFacts], lineage: Lineage, lanes: Mapping[CallId, Lane], main_end: CallId | None
) -> list[Chain]:
    """One chain for each kept call that no other goes on from, in order of their first owned calls."""
    allowed = frozenset(call.call_id for call in kept)
    bases = {call.call_id: lineage.base(call, allowed) for call in kept}
    heirs = _heirs(kept, bases, lanes, main_end)
    chains = list[Chain]()
    for call in kept:
        if call.call_id not in heirs:
            calls = _line(call, bases)
            first = next(place for place, one in enumerate(calls) if _owner(one.call_id, heirs) == call.call_id)
            chains.append(Chain(calls, calls[first:], allowed))
    return sorted(chains, key=lambda chain: chain.owned[0].order)


def lone_chains(calls: Sequence[CallFacts], usable: Sequence[CallFacts], lineage: Lineage) -> list[Chain]:
    """One chain for each call that is not kept."""
    allowed = frozenset(call.call_id for call in usable)
    bases = {call.call_id: lineage.base(call, allowed) for call in usable} if calls else {}
    return [Chain(_line(call, bases), (call,), allowed) for call in calls]


def _heirs(
    kept: Sequence[CallFacts],
    bases: Mapping[CallId, CallFacts | None],
    lanes: Mapping[CallId, Lane],
    main_end: CallId | None,
) -> dict[CallId, CallId]:
    """For each call that is gone on from, the child whose chain it belongs to."""
    heirs = dict[CallId, CallId]()
    for call in kept:
        base = bases[call.call_id]
        if base is not None and lanes[base.call_id].key == lanes[call.call_id].key:
            heirs.setdefault(base.call_id, call.call_id)
    child = main_end
    while child is not None and (above := bases[child]) is not None:
        heirs[above.call_id] = child
        child = above.call_id
    return heirs


def _owner(call_id: CallId, heirs: Mapping[CallId, CallId]) -> CallId:
    while call_id in heirs:
        call_id = heirs[call_id]
    return call_id


def _line(call: CallFacts, bases: Mapping[CallId, CallFacts | None]) -> tuple[CallFacts, ...]:
    line, above = [call], bases[call.call_id]
    while above is not None:
        line.append(above)
        above = bases[above.call_id]
    return tuple(reversed(line))
