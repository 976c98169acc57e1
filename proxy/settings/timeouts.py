"""How long anybody waits for anybody."""

from pydantic import BaseModel, ConfigDict, Field


class TimeoutSettings(BaseModel):
    """How long the proxy waits, in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    pause_wait_s: float = Field(900, gt=0, description="Calls wait this long while a trainer has paused the engines.")
    connect_s: float = Field(10, gt=0, description="Connecting to an engine.")
    silence_s: float = Field(900, gt=0, description="Silence from an engine: before its first byte and between two.")
    call_s: float = Field(3600, gt=0, description="One call in all.")
    orphan_grace_s: float = Field(3, ge=0, description="A call goes on this long after its client left.")
    commit_wait_s: float = Field(30, ge=0, description="How long a record that fails to commit is retried.")
    lease_s: float = Field(60, ge=1, description="A reservation without a sign of life for this long is dead.")
    drain_s: float = Field(20, ge=0, description="Calls in flight get this long at shutdown.")
    heartbeat_after_s: float = Field(15, gt=0, description="A stream silent for this long gets a sign of life.")
    probe_s: float = Field(30, gt=0, description="One question to an engine about itself.")

    class_wait_s: float = Field(
        30, ge=0, description="On a deterministic SGLang a sampling class lets the other in after this long."
    )
    class_patience_s: float = Field(
        300,
        gt=0,
        description="A call that has waited this long for its class runs, and all that it disturbs is marked.",
    )

    def of_a_reply(self) -> dict[str, float]:
        """The two that bound a growing reply."""
        return {"call_s": self.call_s, "orphan_grace_s": self.orphan_grace_s}
