"""All settings in one, and what they must agree on with each other."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from proxy.settings.access import AccessFields
from proxy.settings.address import AddressFields, is_loopback
from proxy.settings.engines import EngineFields
from proxy.settings.exchange import ExchangeFields
from proxy.settings.limits import LimitSettings
from proxy.settings.pinning import PinFields
from proxy.settings.places import ENV_PREFIX, config_file
from proxy.settings.profiles import ProfileFields
from proxy.settings.replays import ReplayFields
from proxy.settings.store import StoreFields
from proxy.settings.timeouts import TimeoutSettings
from proxy.settings.trajectories import TrajectoryFields
from proxy.store_url import store_secrets


# From the last base to the first, which is the order that pydantic gives their fields.
class Settings(
    AccessFields,
    StoreFields,
    ExchangeFields,
    ReplayFields,
    TrajectoryFields,
    PinFields,
    ProfileFields,
    EngineFields,
    AddressFields,
    BaseSettings,
):
    """All settings of one proxy."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_prog_name="rollpin serve",
    )

    limits: LimitSettings = LimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    log_format: Literal["console", "json"] = Field("console", description="How the log is written.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is logged.")

    @model_validator(mode="after")
    def _agree(self) -> "Settings":
        if wrong := tuple(self._disagreements()):
            raise ValueError("\n".join(wrong))
        return self

    def _disagreements(self) -> Iterator[str]:
        if self.default_profile not in self.profiles:
            yield f"default_profile: no profile is named {self.default_profile!r}"
        if self.control_port is not None and self.control_socket is not None:
            yield "control_port: excludes control_socket"
        if self.control_port and self.control_port == self.port:
            yield "control_port: the same as port; leave it unset to share that"
        if self.admin_token and self.read_token and self.admin_token == self.read_token:
            yield "read_token: must differ from admin_token"
        if self.auto_register and not is_loopback(self.host):
            yield f"auto_register: needs a loopback host, not {self.host!r}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the signature is pydantic's
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = TomlConfigSettingsSource(settings_cls, config_file())
        return init_settings, env_settings, file

    def secrets(self) -> tuple[str, ...]:
        """Every secret that was set: none may be logged."""
        named = (self.admin_token, self.read_token, self.key_secret, *(engine.api_key for engine in self.engines))
        return (*(secret.get_secret_value() for secret in named if secret), *store_secrets(self.store))
