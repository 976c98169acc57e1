"""Who is let in: the tokens, the secret that signs keys, and what is taken on trust."""

from pathlib import Path

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator

from proxy.settings.values import TOKEN_PATTERN, Secret

SHORTEST_SECRET = 16


class AccessFields(BaseModel):
    """What opens the control plane and the rollouts."""

    admin_token: Secret = Field(None, description="Opens every control route; unset is minted once.")
    read_token: Secret = Field(None, description="Opens the reading routes; unset is minted once.")
    key_secret: Secret = Field(None, description="Signs rollout keys; replicas share it; unset is minted once.")
    secrets_file: Path = Field(Path("rollpin.secrets.json"), description="Where minted secrets are kept (mode 0600).")
    trust_rollout_header: bool = Field(False, description="Let X-Rollout-Id name the rollout.")
    auto_register: bool = Field(
        False, description="Create unknown rollouts on first use, any key accepted; loopback only."
    )

    @field_validator("admin_token", "read_token", "key_secret")
    @classmethod
    def _strong(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        text = value.get_secret_value() if value else ""
        if text and len(text) < SHORTEST_SECRET:
            raise ValueError(f"needs {SHORTEST_SECRET} characters or more")
        if info.field_name != "key_secret" and text and not TOKEN_PATTERN.fullmatch(text):
            raise ValueError("only printable ASCII without spaces can be sent in a header")
        if info.field_name != "key_secret" and text.startswith("rk-"):
            raise ValueError("must not begin with rk-, as the keys of rollouts do")
        return value
