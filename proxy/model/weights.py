"""What a trainer does to the engines while calls run: it pauses them, and gives them other weights."""

from dataclasses import dataclass
from typing import Literal

PauseMode = Literal["abort", "retract", "in_place", "wait", "keep"]
"""SGLang's and vLLM's own words for what becomes of calls that run: docs/weights.md."""

KvFate = Literal["renewed", "kept", "unknown"]


@dataclass(frozen=True, slots=True)
class Pause:
    """A stop of all engines that a trainer asked for; in force until it is resumed, whatever its lease says."""

    pause_id: str
    mode: PauseMode
    asked_at: float
    lease_until: float
    """From here on calls that wait are told so, and new ones are refused."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What is known of one engine's weights."""

    url: str
    version: str | None = None
    """The trainer's name for them; None where nobody told."""
    epoch: int = 0
    """Raised with each change: a name that comes back is not the same weights."""
    told_by: Literal["engine", "trainer"] | None = None
    is_flushed: bool = True
    """Whether the engine's prefix cache was emptied after they came, or they were its first."""
    kv: KvFate = "unknown"
    """What became of the cache of calls that ran while they came."""
    process: str | None = None
    """Whom a trainer's word was about (`EngineFacts.process`); None where nothing told processes apart."""
