"""What passes between harness and engine: what is let through, kept and asked again, and how replies are told."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator
from pydantic_settings import NoDecode

from proxy.settings.values import listed

# What an assistant message holds beside its reasoning.
MESSAGE_FIELDS = frozenset({"role", "content", "refusal", "tool_calls", "name", "audio", "function_call"})


class ExchangeFields(BaseModel):
    """Requests on their way to the engine, and replies on theirs to the client."""

    media_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Hosts whose image and audio URLs may reach the engine, comma separated; data: URLs always may."
    )
    capture_routed_experts: bool = Field(
        False, description="Keep which experts of a mixture each token went through, where the engine returns it."
    )
    resume_attempts: int = Field(
        8, ge=0, le=1000, description="How often one reply that an engine aborts is asked on before its call fails."
    )
    later_system: Literal["keep", "as_user"] = Field(
        "keep",
        description="System messages after the first message of a Messages conversation: kept, or told as the user's,"
        " for chat templates that take none there.",
    )
    hold_streams: bool = Field(
        False,
        description="A streamed reply is told in one go once it is on record, with signs of life until then; of one"
        " that breaks off clients see nothing but the error (docs/apis.md).",
    )
    heartbeat_unstreamed: bool = Field(
        False,
        description="Signs of life on unstreamed replies too: blanks before the body, and status 200 whatever comes.",
    )
    reasoning_field: str = Field(
        "reasoning_content", pattern=r"^[a-z_]+$", description="Where clients find the reasoning text."
    )

    @field_validator("media_hosts", mode="before")
    @classmethod
    def _hosts_as_list(cls, value: Any) -> Any:
        return listed(value) if isinstance(value, str) else value

    @field_validator("reasoning_field")
    @classmethod
    def _apart(cls, value: str) -> str:
        if value in MESSAGE_FIELDS:
            raise ValueError(f"{value!r} is another field of a message")
        return value
