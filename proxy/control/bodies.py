"""What may stand in the bodies and queries of the control plane; anything else is refused."""

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from proxy.errors import BadAsk
from proxy.model import PINNED_FIELDS, JsonObject
from proxy.settings import LARGEST_INT32, LONGEST_TTL_S

# Values of one rollout alone; which model it asks and what its prefixes are is its profile's matter.
OVERRIDABLE = (*PINNED_FIELDS, "max_tokens_cap")
LARGEST_METADATA_BYTES = 65_536
LARGEST_OUTCOME_BYTES = 1_048_576
LARGEST_GROUP = 4096
# The store's integers have 64 bits, JSON's of many clients 53.
LARGEST_INTEGER = 2**53


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("only printable characters")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_most(value: JsonObject, limit: int) -> JsonObject:
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > limit:
        raise ValueError(f"{size} bytes of JSON, and {limit} is the limit")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Index = Annotated[int, Field(ge=0, le=LARGEST_INT32)]


class Strict(BaseModel):
    """A body in which nothing unknown stands, and nothing is bent to fit."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Opening(Strict):
    """What rollouts and groups have in common."""

    run: Name = "default"
    attempt: Index = 0
    profile: str | None = None
    sampling: JsonObject | None = None
    ttl_s: float | None = Field(None, gt=0, le=LONGEST_TTL_S)
    """Null is without end; absent takes the limit of the settings."""
    token_budget: int | None = Field(None, ge=1, le=LARGEST_INTEGER)
    metadata: JsonObject | None = None

    @field_validator("sampling")
    @classmethod
    def _numbers_by_name(cls, value: JsonObject | None) -> JsonObject | None:
        for name, number in (value or {}).items():
            if name not in OVERRIDABLE:
                raise ValueError(f"{name}: no such value; there are {', '.join(OVERRIDABLE)}")
            if not _is_number(number):
                raise ValueError(f"{name}: must be a number")
        return value

    @field_validator("metadata")
    @classmethod
    def _small(cls, value: JsonObject | None) -> JsonObject | None:
        return value if value is None else _at_most(value, LARGEST_METADATA_BYTES)


class RolloutBody(_Opening):
    """Body of POST /rollouts."""

    rollout_id: str | None = None
    group: Name | None = None
    sample: Index = 0


class GroupBody(_Opening):
    """Body of POST /groups."""

    group: Name
    size: int = Field(ge=1, le=LARGEST_GROUP)
    rollout_ids: list[str] | None = None

    @field_validator("rollout_ids")
    @classmethod
    def _distinct(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("an id stands there twice")
        return value


class PageQuery(BaseModel):
    """Query of a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cursor: str | None = None
    limit: int = Field(100, ge=1, le=1000)


class RolloutsQuery(PageQuery):
    """Query of GET /rollouts."""

    run: str | None = None
    group: str | None = None
    state: Literal["open", "finished", "expired", "deleted"] | None = None


def checked_outcome(value: JsonObject) -> JsonObject:
    """An outcome: a reward, if there is one, and anything else; raises BadAsk."""
    if not (value.get("reward") is None or _is_number(value["reward"])):
        raise BadAsk("reward: must be a number", param="reward")
    try:
        return _at_most(value, LARGEST_OUTCOME_BYTES)
    except ValueError as error:
        raise BadAsk(f"outcome: {error}") from error
