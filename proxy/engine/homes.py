"""Where rollouts are at home: which engine each was last at, and which of several takes its next call.

A rollout moves only among engines on which its token ids mean the same.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.engine.gate import Gates, class_of, minds_classes
from proxy.engine.share import Seat, choose_seat
from proxy.errors import EngineUnready
from proxy.model import EngineRef, Profile, RolloutId

# Rollouts whose engine is remembered; one that is forgotten goes where its name's hash sends it.
ROLLOUTS_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine that could take a call."""

    ref: EngineRef
    weight: float


class Homes:
    """The engines of rollouts, the longest unused forgotten first."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._homes: OrderedDict[RolloutId, EngineRef] = OrderedDict()

    def choose(self, rollout_id: RolloutId, profile: Profile, candidates: Sequence[Candidate]) -> EngineRef:
        """The engine of a rollout's next call; raises EngineUnready where it could only go to one unlike its own."""
        home = self._homes.get(rollout_id)
        alike = [one for one in candidates if home is None or is_alike(one.ref, home)]
        if not alike:
            raise EngineUnready("every engine with this rollout's model, tokenizer and template is gone or unwell")
        return self._settle(rollout_id, profile, alike, home)

    def choose_instead(
        self, rollout_id: RolloutId, profile: Profile, candidates: Sequence[Candidate], unreached: Sequence[EngineRef]
    ) -> EngineRef | None:
        """Another engine for a call that the last of these could not be given; None where there is none like it."""
        tried = {ref.name for ref in unreached}
        able = [one for one in candidates if one.ref.name not in tried and can_replace(one.ref, unreached[-1])]
        return self._settle(rollout_id, profile, able, None) if able else None

    def _settle(
        self, rollout_id: RolloutId, profile: Profile, candidates: Sequence[Candidate], home: EngineRef | None
    ) -> EngineRef:
        """One of them, one whose gate is open to the profile's sampling class if there is any; its home from now on."""
        kind = class_of(dict(profile.pinned()))
        at_once = [
            one for one in candidates if not minds_classes(one.ref) or self._gates.is_open(one.ref.url, kind)
        ] or candidates
        seats = [Seat(one.ref.name, one.ref.url, one.weight, self._gates.load(one.ref.url)) for one in at_once]
        seat = choose_seat(rollout_id, seats, home.name if home else None)
        chosen = next(one.ref for one in at_once if one.ref.name == seat.name)
        self._homes[rollout_id] = chosen
        self._homes.move_to_end(rollout_id)
        if len(self._homes) > ROLLOUTS_REMEMBERED:
            self._homes.popitem(last=False)
        return chosen


def is_alike(ref: EngineRef, home: EngineRef) -> bool:
    """Whether a rollout may go on here that was last there: token ids mean the same, or it is the same engine."""
    shared = ref.facts.fingerprint is not None and ref.facts.fingerprint == home.facts.fingerprint
    return shared or ref.name == home.name


def can_replace(ref: EngineRef, failed: EngineRef) -> bool:
    """Whether a call that was planned for one engine may be carried out by another as it stands."""
    room, planned = ref.facts.context_length, failed.facts.context_length
    fits = planned is None or (room is not None and room >= planned)
    return is_alike(ref, failed) and fits
