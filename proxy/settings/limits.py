"""What calls and rollouts may use up."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from proxy.settings.values import NO_LIMIT

# About 31 years; keeps every expiry a date that can be written.
LONGEST_TTL_S = 1_000_000_000


class LimitSettings(BaseModel):
    """What one caller or one rollout may use up."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    body_bytes: int = Field(50_000_000, ge=1_000, description="Largest request body; over it is a 413.")
    reply_bytes: int = Field(200_000_000, ge=10_000, description="Largest engine reply that is read.")
    calls_at_once: int = Field(2048, ge=1, description="Calls in flight in all; over it is a 429.")
    calls_at_once_per_rollout: int = Field(64, ge=1, description="Calls in flight of one rollout.")
    calls_per_rollout: int | None = Field(None, ge=1, description="Calls of one rollout in all; over it is a 429.")
    tokens_per_rollout: int | None = Field(
        None, ge=1, description="Token budget of rollouts that name none: generated tokens, then replies end by length."
    )
    rollout_ttl_s: float | None = Field(
        86_400, gt=0, le=LONGEST_TTL_S, description="Rollouts expire after this unless they ask for another ttl_s."
    )

    @field_validator("rollout_ttl_s", mode="before")
    @classmethod
    def _none_in_words(cls, value: Any) -> Any:
        return None if value == NO_LIMIT else value
