"""How strictly calls are held to their profile and their seed, and what becomes of one that cannot be."""

from typing import Literal

from pydantic import BaseModel, Field


class PinFields(BaseModel):
    """What is replaced, dropped or refused, of a request and of a reply."""

    pin_mode: Literal["override", "strict"] = Field(
        "override", description="Replace what a client asks of the sampler, or refuse it."
    )
    run_seed: int | None = Field(
        None, ge=0, lt=2**53, description="Root of all seeds; unset draws one and keeps it in the store."
    )
    client_seed: Literal["override", "honour", "mix"] = Field(
        "override", description="What becomes of a seed that a client sends."
    )
    require_replayable: bool = Field(
        False, description="Refuse profiles and engines whose calls could not be replayed."
    )
    prove_engines: bool = Field(
        True, description="Draw some fifty tokens from each engine that appears: do its ids and seeds hold?"
    )
    missing_ids: Literal["fail", "mask"] = Field(
        "fail", description="A reply without whole ids fails its call, or is passed on and its whole rollout is masked."
    )
    constrained_fields: Literal["flag", "drop", "refuse"] = Field(
        "flag", description="Fields that bend the distribution: passed and marked, dropped, or refused."
    )
    unknown_fields: Literal["drop", "refuse"] = Field(
        "drop", description="Fields outside the allow-list: dropped and recorded, or refused."
    )
