"""Who asks: a rollout in its group, the profile that its calls are pinned to, and whose call it is by its headers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from proxy.model.words import JsonObject, RolloutId

# The complete set that decides how a token is drawn; each is sent with every call.
PINNED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)

# Headers by which real harnesses tell their main agent from its sub-agents.
LANE_HEADERS = (
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "x-session-id",
    "x-parent-session-id",
    "session-id",
    "thread-id",
    "x-codex-parent-thread-id",
    "x-openai-subagent",
    "x-litellm-session-id",
    "user-agent",
)

RolloutState = Literal["open", "finished", "expired", "deleted"]


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of sampling values; what every call of a rollout is pinned to."""

    name: str
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens_cap: int | None = None
    """Most tokens a call may generate; None leaves it to the client and the model's context."""
    prefix_supply: bool = True
    """Whether the engine is given the exact ids of the conversation so far."""
    model: str | None = None
    """Name sent to the engine; None sends the engine's own served name."""

    def pinned(self) -> dict[str, float | int]:
        """The complete sampling set, by the engines' field names."""
        return {name: getattr(self, name) for name in PINNED_FIELDS}

    @property
    def is_greedy(self) -> bool:
        """Whether the seed decides nothing."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt of a harness at one task."""

    rollout_id: RolloutId
    run: str
    group: str
    sample: int
    attempt: int
    profile: str
    sampling: Mapping[str, float | int]
    """Values that differ from the profile's for this rollout alone."""
    state: RolloutState
    created_at: float
    expires_at: float | None
    finished_at: float | None = None
    token_budget: int | None = None
    metadata: JsonObject = field(default_factory=dict)
    outcome: JsonObject | None = None
    revision: int = 0
    """Raised by each change after the first read could have happened: outcomes, late results."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose call this is, and what the client's headers say of it."""

    rollout: Rollout
    lane_signals: Mapping[str, str]
    """Headers of known harnesses that tell the main agent from sub-agents; recorded, never in seeds."""
    idempotency_key: str | None
    retry_count: int

    @property
    def rollout_id(self) -> RolloutId:
        return self.rollout.rollout_id


@dataclass(frozen=True, slots=True)
class GroupFlag:
    """Something that is wrong with a group as a whole."""

    flag: Literal["collapsed"]
    raised_at: float
    detail: JsonObject
