"""What answers: the engines of the pool, or a recorded run in their place."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from proxy.settings.values import TOKEN_PATTERN, Secret, checked_url, listed


class EngineSettings(BaseModel):
    """One engine of the pool."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    url: str = Field(description="Base URL of the server, without /v1.")
    kind: Literal["auto", "vllm", "sglang", "nemo_rl"] = Field(
        "auto", description="What serves there; auto asks it, and takes NeMo-RL for the vLLM in it."
    )
    api_key: Secret = Field(None, description="Bearer token that the engine wants, if any.")
    weight: float = Field(1.0, gt=0, description="Share of the rollouts that it gets among its peers.")

    @field_validator("url")
    @classmethod
    def _http_url(cls, value: str) -> str:
        return checked_url(value).removesuffix("/v1")

    @field_validator("api_key")
    @classmethod
    def _fits_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not TOKEN_PATTERN.fullmatch(value.get_secret_value()):
            raise ValueError("only printable ASCII without spaces can be sent in a header")
        return value


class EngineFields(BaseModel):
    """The pool, and what may stand in for it."""

    cassette: str | None = Field(
        None, description="Serve this recorded run back without any engine; nothing is recorded."
    )
    engines: Annotated[tuple[EngineSettings, ...], NoDecode] = Field(
        (), validate_default=True, description="The engines, at least one; plain URLs, comma separated, will do."
    )

    @field_validator("engines", mode="before")
    @classmethod
    def _urls_as_engines(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = listed(value)
        if isinstance(value, dict):
            value = [value]
        if isinstance(value, list | tuple):
            return tuple({"url": item.strip()} if isinstance(item, str) else item for item in value)
        return value

    @field_validator("engines")
    @classmethod
    def _each_once(cls, value: tuple[EngineSettings, ...]) -> tuple[EngineSettings, ...]:
        urls = [engine.url for engine in value]
        if twice := {url for url in urls if urls.count(url) > 1}:
            raise ValueError(f"named twice: {', '.join(sorted(twice))}")
        return value
