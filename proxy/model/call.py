"""What is kept: a call with its plan and its outcome, and how each client's reading of it ended."""

from dataclasses import dataclass
from typing import Literal

from proxy.model.plan import Plan
from proxy.model.reply import Outcome, Segment


@dataclass(frozen=True, slots=True)
class Timing:
    """When things happened; durations in seconds from started_at."""

    started_at: float
    first_event_s: float | None
    ended_s: float


@dataclass(frozen=True, slots=True)
class Replayable:
    """Whether the same tokens can be drawn again, and what stands in the way."""

    verdict: Literal["yes", "no", "unproven"]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call with its outcome: what the store keeps."""

    plan: Plan
    outcome: Outcome
    segments: tuple[Segment, ...]
    timing: Timing
    replayable: Replayable


DeliveryOutcome = Literal["delivered", "client_gone", "error_told", "broken", "lost"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """How one client's reading of a request's calls ended."""

    delivery_id: str
    ended_at: float
    outcome: DeliveryOutcome
    events: int
    """Events handed to the client's socket."""
