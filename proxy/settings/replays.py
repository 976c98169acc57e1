"""How recorded calls are held against the engines again."""

from pydantic import BaseModel, Field


class ReplayFields(BaseModel):
    """How many at once, how close is close, and which calls without being asked."""

    replays_at_once: int = Field(4, ge=1, description="Replays and rescores at the engines at once, in all.")
    replay_tolerance: float = Field(
        0.001, ge=0, description="What logprobs may differ by, in nats, where a replay draws the same tokens."
    )
    replay_sample_rate: float = Field(
        0, ge=0, le=1, description="Share of the calls that are replayed once recorded, for the metrics."
    )
    rescore_sample_rate: float = Field(
        0, ge=0, le=1, description="Share of the calls that are rescored once recorded, for the metrics."
    )
    audit_top_logprobs: int = Field(
        0, ge=0, le=20, description="Candidates of each draw kept for the seed audit (unstreamed calls on SGLang)."
    )
