"""What calls are pinned to: the named sampling sets."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from proxy.errors import BadAsk
from proxy.model import Profile
from proxy.settings.faults import faults
from proxy.settings.values import LARGEST_INT32

PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PROFILE_NAME_RULE = "1 to 64 letters, digits, dots, dashes or underscores, beginning with a letter or digit"


class ProfileSettings(BaseModel):
    """The complete sampling set of a profile; what a harness asks for is pinned to these values."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: float = Field(1.0, ge=0, le=2, description="Softmax temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus mass; 1 keeps every token.")
    top_k: int = Field(-1, ge=-1, le=LARGEST_INT32, description="Most likely tokens kept; -1 keeps every token.")
    min_p: float = Field(0.0, ge=0, le=1, description="Least probability relative to the top; 0 is off.")
    repetition_penalty: float = Field(1.0, gt=0, le=2, description="1 is off.")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="0 is off.")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="0 is off.")
    max_tokens_cap: int | None = Field(None, ge=1, description="Most tokens a call may generate.")
    prefix_supply: bool = Field(
        True, description="Give the engine the exact ids of the conversation so far (docs/prefixes.md)."
    )
    model: str | None = Field(None, min_length=1, description="Model name sent to the engine; unset sends its own.")

    @field_validator("top_k")
    @classmethod
    def _no_zero_top_k(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 means 'off' to one engine and an error to another; write -1 for off")
        return value

    def named(self, name: str) -> Profile:
        """The profile as the core knows it."""
        return Profile(name=name, **self.model_dump())


class ProfileFields(BaseModel):
    """The profiles, and the one of rollouts that name none."""

    profiles: dict[str, ProfileSettings] = Field(
        default_factory=dict,
        validate_default=True,
        description="Named sampling sets; `train` and `validation` always exist.",
    )
    default_profile: str = Field("train", description="Profile of rollouts that name none.")

    @field_validator("profiles", mode="before")
    @classmethod
    def _with_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        named = {"train": {}, "validation": {}, **value}
        return {
            name: {**profile_defaults(name), **values} if isinstance(values, dict) else values
            for name, values in named.items()
        }

    @field_validator("profiles")
    @classmethod
    def _well_named(cls, value: dict[str, ProfileSettings]) -> dict[str, ProfileSettings]:
        for name in value:
            if not PROFILE_NAME.fullmatch(name):
                raise ValueError(f"{name[:80]!r}: {PROFILE_NAME_RULE}")
        return value


def profile_defaults(name: str) -> dict[str, Any]:
    """Where a profile's defaults differ from everybody's: nothing is trained on validation, so nothing is supplied."""
    return {"prefix_supply": False} if name == "validation" else {}


def profile_from(name: str, values: Mapping[str, Any]) -> Profile:
    """A profile from outside values, on top of its defaults; raises BadAsk with all faults on one line."""
    if not PROFILE_NAME.fullmatch(name):
        raise BadAsk(f"profile name {name[:80]!r}: {PROFILE_NAME_RULE}", code="invalid_profile", param="name")
    try:
        settings = ProfileSettings.model_validate({**profile_defaults(name), **values}, strict=True)
    except ValidationError as error:
        raise BadAsk("; ".join(faults(error)), code="invalid_profile") from error
    return settings.named(name)
