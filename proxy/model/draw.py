"""What the store is told before the engine is asked, and what it answers: a new draw, or a repeat of an earlier one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from proxy.model.ask import Api
from proxy.model.words import CallId, RolloutId


@dataclass(frozen=True, slots=True)
class Draw:
    """One choice of a request: a call to be, and how its seed follows from the request's occurrence."""

    call_id: CallId
    choice: int
    mint: Callable[[int], int]
    """Seed from occurrence; pure."""


@dataclass(frozen=True, slots=True)
class RepeatMark:
    """What tells a retry from a deliberate repeat."""

    ask_hash: str
    """Equal for identical requests: same lane, context, effective sampling, length, stop and shaping fields."""
    idempotency_key: str | None
    is_retry: bool
    """Whether the client's SDK says that this is not its first try."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is written before the engine is asked: a row for each choice, and the first delivery of each."""

    request_id: str
    rollout_id: RolloutId
    context: str
    history: str
    draws: tuple[Draw, ...]
    repeat: RepeatMark
    delivery_id: str
    api: Api
    stream: bool
    asked_at: float
    lease_until: float
    owner: str
    """The proxy process that answers for it; leases of a dead owner end at once on a store with one owner."""
    exclusive_seed: bool = False
    """Refuse a seed that another sample of the group holds on the same context."""
    most_calls: int | None = None
    """Refuse a new draw by which the rollout would have more calls; a claim adds none."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """A new draw: the lowest occurrence that no other call of (rollout, context) holds, and the seed of each choice."""

    occurrence: int
    seeds: tuple[int, ...]
    reason: Literal["new", "draw_abandoned"] = "new"


ClaimReason = Literal["idempotency_key", "failed", "client_gone", "retry_count"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A repeat of earlier calls: no new draw, one more delivery of theirs."""

    request_id: str
    call_ids: tuple[CallId, ...]
    occurrence: int
    seeds: tuple[int, ...]
    standing: Literal["running", "recorded", "again"]
    """`again`: the draw failed, and the rows are reserved anew for another try with the same seeds."""
    reason: ClaimReason
    tries: int = 0
    """How often the draw was tried before, and failed."""
