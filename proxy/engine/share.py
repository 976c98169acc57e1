"""Which engine a rollout goes to, and when it has to move: pure.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, arXiv:1608.01350): every rollout has an order
of preference among the engines, and takes the first whose load is within a constant factor of its share. The order is
that of weighted rendezvous scores (logarithmic method of Schindelhauer and Schomaker, SPAA 2005) instead of a ring, so
that an engine that comes or goes moves only its own rollouts, and spreads them over all others.

A rollout stays where it is, for the sake of its prefix cache there, for as long as that engine has room.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.model import RolloutId

# How far over its share an engine may get: the paper's 1 + ε. HAProxy and others settled near it as well.
LOAD_FACTOR = 1.25
# Loads so small that no engine feels a difference, while a rollout that moves would miss its cache.
ALWAYS_ROOM = 8


@dataclass(frozen=True, slots=True)
class Seat:
    """An engine that could take a rollout."""

    name: str
    url: str
    weight: float
    load: int
    """Calls that it has or that wait for it."""


def choose_seat(rollout_id: RolloutId, seats: Sequence[Seat], stays_at: str | None) -> Seat:
    """The seat of a rollout that was last at `stays_at`; there must be one seat at least."""
    with_room = [seat for seat in seats if has_room(seat, seats)]
    staying = next((seat for seat in with_room if seat.name == stays_at), None)
    return staying or max(with_room, key=lambda seat: preference(rollout_id, seat))


def has_room(seat: Seat, seats: Sequence[Seat]) -> bool:
    """Whether one more call keeps the engine within its bound; true of one seat at least."""
    calls = 1 + sum(other.load for other in seats)
    share = seat.weight / sum(other.weight for other in seats)
    return seat.load < max(ALWAYS_ROOM, math.ceil(LOAD_FACTOR * calls * share))


def preference(rollout_id: RolloutId, seat: Seat) -> float:
    """Weighted rendezvous score: the highest is preferred, in proportion to the weights over many rollouts."""
    drawn = int.from_bytes(hashlib.sha256(f"{rollout_id}\n{seat.url}".encode()).digest()[:8], "big")
    return -seat.weight / math.log((drawn + 1) / (2**64 + 1))
