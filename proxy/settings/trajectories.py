"""What trajectories leave out: calls beside the task, by rule or by looks, and tokens under a bent distribution."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from proxy.model import LANE_HEADERS

BUILT_IN_RULES = {
    "title_call": "side_title_calls",
    "commit_message": "side_known_calls",
    "memory_extraction": "side_known_calls",
}
"""The switch of each rule about side calls that stands without any setting."""


class SideCallSettings(BaseModel):
    """A rule that tells calls beside the task; every condition that is given must hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$", description="Stands in reasons, as `side_rule_NAME`.")
    action: Literal["exclude", "label", "keep"] = Field(
        "exclude", description="Left out of trajectories; labelled `maybe_side`; or kept, whatever other rules say."
    )
    requested_model: str | None = Field(
        None, min_length=1, description="Pattern with * and ? over the model that was asked for."
    )
    system_contains: str | None = Field(
        None, min_length=1, description="A piece of the leading system messages, in any case."
    )
    system_matches: str | None = Field(
        None, min_length=1, description="Regular expression that is found in the leading system messages."
    )
    signals: dict[str, str] = Field(
        default_factory=dict,
        description="Patterns with * and ? over headers, by lower-case name: `user-agent` and those that tell lanes.",
    )
    has_tools: bool | None = Field(None, description="Whether the request offers tools.")
    most_messages: int | None = Field(None, ge=1, description="The request has no more messages than this.")
    alone: bool = Field(False, description="A first turn without tools that is never gone on from.")

    @field_validator("system_matches")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("signals")
    @classmethod
    def _are_recorded(cls, value: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(value) - set(LANE_HEADERS)):
            raise ValueError(f"{', '.join(unknown)}: not recorded; there are {', '.join(LANE_HEADERS)}")
        return value

    @model_validator(mode="after")
    def _has_a_condition(self) -> "SideCallSettings":
        if not self.model_dump(exclude={"name", "action"}, exclude_defaults=True):
            raise ValueError(f"{self.name}: without a condition it would match every call")
        return self


class TrajectoryFields(BaseModel):
    """Rules of one's own, the switches of those that are built in, and the mask."""

    side_calls: Annotated[tuple[SideCallSettings, ...], NoDecode] = Field(
        (), description="Rules that tell calls beside the task; the first that matches decides."
    )
    side_title_calls: bool = Field(
        True, description="Take lone calls that are told to write a title out of trajectories."
    )
    side_known_calls: bool = Field(
        True,
        description="Take what harnesses do for themselves, known by their words (commit messages, memories), out of"
        " trajectories.",
    )
    side_other_model: bool = Field(
        True, description="Take a lone call without tools for another model than the agent's out of trajectories."
    )
    side_uncertain: Literal["keep", "drop"] = Field(
        "keep", description="What becomes of calls that look like side calls and cannot be proven to be."
    )
    constrained_training: Literal["keep", "mask"] = Field(
        "mask", description="Whether trajectories train on tokens drawn under a bent distribution."
    )

    @field_validator("side_calls", mode="before")
    @classmethod
    def _rules_as_list(cls, value: Any) -> Any:
        """Flags give one text, or a text for each rule."""
        if isinstance(value, str):
            value = json.loads(value)
        if isinstance(value, dict):
            value = [value]
        if isinstance(value, list | tuple):
            return tuple(json.loads(item) if isinstance(item, str) else item for item in value)
        return value

    @field_validator("side_calls")
    @classmethod
    def _each_its_name(cls, value: tuple[SideCallSettings, ...]) -> tuple[SideCallSettings, ...]:
        names = [rule.name for rule in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named twice: {', '.join(twice)}")
        if taken := next((name for name in names if name in BUILT_IN_RULES), None):
            raise ValueError(f"{taken} is built in: switch it off by {BUILT_IN_RULES[taken]}, and name yours otherwise")
        return value
