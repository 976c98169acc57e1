"""What is decided before the engine is asked: sampling, seed and prefix, and the Plan that holds all of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from proxy.model.ask import Ask
from proxy.model.engine import EngineRef
from proxy.model.parent import Parent
from proxy.model.rollout import Profile
from proxy.model.words import CallId, JsonObject


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the client asked of the sampler and what the engine is told."""

    effective: Mapping[str, float | int]
    """The profile's complete set, as sent."""
    asked: JsonObject
    """Every sampling, length, stop and shaping value that the client sent."""
    overridden: tuple[str, ...]
    length: JsonObject
    """max_tokens and stop fields as sent; max_tokens absent means the rest of the context."""
    shaping: JsonObject
    """Fields that bend the distribution and were passed on."""
    constrained: tuple[str, ...]
    """Names of the shaping fields in force; such tokens are not plain samples of the policy."""
    ignored: tuple[str, ...]
    """Names of client fields that were not passed on."""

    @property
    def max_tokens(self) -> int | None:
        value = self.length.get("max_tokens")
        return value if isinstance(value, int) else None


SeedSource = Literal["minted", "client", "mixed"]


@dataclass(frozen=True, slots=True)
class Seed:
    """The seed of one call and how it came about."""

    value: int
    source: SeedSource
    occurrence: int
    choice: int
    client_seed: int | None = None
    run_seed: int | None = None
    """The root that it was minted from; None where the client's seed alone decides."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Whether the exact ids of the conversation so far were given to the engine."""

    eligible: bool
    """Whether there is a parent whose ids the profile wants to be supplied."""
    requested: bool
    """Whether they were sent."""
    supplied: bool
    """Whether the ids that came back prove that the engine took them."""
    length: int
    """Ids sent."""
    reason: str
    """`exact`, `substituted` or `cut` (how the parent's turn ended), or why nothing was sent."""
    detail: str = ""
    drift_at: int | None = None
    """First place at which a render of the same history would have departed from the ids supplied; None: nowhere."""
    token_ids: tuple[int, ...] = field(default=(), repr=False)
    parent_length: int = 0
    """How many of the ids are the parent's prompt and reply; the tail follows."""

    @property
    def outcome(self) -> Literal["supplied", "unproven", "refused", "none"]:
        """What became of it, in a word; `none` where there was nothing to supply."""
        if self.supplied:
            return "supplied"
        if self.requested:
            return "unproven"
        return "refused" if self.eligible else "none"


@dataclass(frozen=True, slots=True)
class Plan:
    """Every decision about one call, made before the engine is asked; nothing changes it later."""

    call_id: CallId
    request_id: str
    ask: Ask
    profile: Profile
    parent: Parent
    sampling: Sampling
    seed: Seed
    prefix: Prefix
    engine: EngineRef
    started_at: float
    unreached: tuple[EngineRef, ...] = ()
    """Engines that it was planned for first and that could not be reached."""
    audit_top: int = 0
    """How many candidates of each draw are kept for the seed audit; no client sees them."""
    tries: int = 0
    """How often the same draw was tried before, and failed."""
