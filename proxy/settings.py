"""Every setting, with its default, its range and what it is for.

One key has one meaning in rollpin.toml, as ROLLPIN_… in the environment (nested names joined by two underscores) and
as a flag; flags win over the environment, the environment over the file. docs/settings.md is generated from here.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from proxy.errors import BadAsk
from proxy.model import LANE_HEADERS, Profile
from proxy.store_url import MASK, checked_store_url, shown_store_url, sqlite_path, store_secrets

CONFIG_FILE = "rollpin.toml"
CONFIG_VARIABLE = "ROLLPIN_CONFIG"
ENV_PREFIX = "ROLLPIN_"
NESTED = ("profiles", "limits", "timeouts")
"""Settings that have settings of their own: ROLLPIN_LIMITS__BODY_BYTES."""
SECRETS = frozenset({"admin_token", "read_token", "key_secret", "api_key"})
PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PROFILE_NAME_RULE = "1 to 64 letters, digits, dots, dashes or underscores, beginning with a letter or digit"
# Tokens travel in a header, so anything else could never be presented.
TOKEN_PATTERN = re.compile(r"[!-~]+")
# What an assistant message holds beside its reasoning.
MESSAGE_FIELDS = frozenset({"role", "content", "refusal", "tool_calls", "name", "audio", "function_call"})
SHORTEST_SECRET = 16
LARGEST_INT32 = 2**31 - 1
# About 31 years; keeps every expiry a date that can be written.
LONGEST_TTL_S = 1_000_000_000
# TOML has no null.
NO_LIMIT = "none"

BUILT_IN_RULES = {
    "title_call": "side_title_calls",
    "commit_message": "side_known_calls",
    "memory_extraction": "side_known_calls",
}
"""The switch of each rule about side calls that stands without any setting."""

Secret = SecretStr | None
chosen_file: ContextVar[Path | None] = ContextVar("chosen_file", default=None)
"""The file of --config while settings are loaded."""


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


class LimitSettings(BaseModel):
    """What one caller or one rollout may use up."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    body_bytes: int = Field(50_000_000, ge=1_000, description="Largest request body; over it is a 413.")
    reply_bytes: int = Field(200_000_000, ge=10_000, description="Largest engine reply that is read.")
    calls_at_once: int = Field(2048, ge=1, description="Calls in flight in all; over it is a 429.")
    calls_at_once_per_rollout: int = Field(64, ge=1, description="Calls in flight of one rollout.")
    calls_per_rollout: int | None = Field(None, ge=1, description="Calls of one rollout in all; over it is a 429.")
    tokens_per_rollout: int | None = Field(
        None, ge=1, description="Token budget of rollouts that name none: generated tokens, then replies end by length."
    )
    rollout_ttl_s: float | None = Field(
        86_400, gt=0, le=LONGEST_TTL_S, description="Rollouts expire after this unless they ask for another ttl_s."
    )

    @field_validator("rollout_ttl_s", mode="before")
    @classmethod
    def _none_in_words(cls, value: Any) -> Any:
        return None if value == NO_LIMIT else value


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


class Settings(BaseSettings):
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

    host: str = Field("127.0.0.1", min_length=1, description="Address that harnesses reach.")
    port: int = Field(8080, ge=0, le=65535, description="Port that harnesses reach; 0 picks a free one.")
    control_host: str = Field("127.0.0.1", min_length=1, description="Address of the control plane's own port.")
    control_port: int | None = Field(
        None, ge=0, le=65535, description="Own port for the control plane; unset shares `port`."
    )
    control_socket: Path | None = Field(
        None, description="Unix socket (mode 0600) for the control plane instead of a port."
    )
    public_url: str | None = Field(None, description="Base URL told to harnesses where it is not host:port.")

    cassette: str | None = Field(
        None, description="Serve this recorded run back without any engine; nothing is recorded."
    )
    engines: Annotated[tuple[EngineSettings, ...], NoDecode] = Field(
        (), validate_default=True, description="The engines, at least one; plain URLs, comma separated, will do."
    )
    profiles: dict[str, ProfileSettings] = Field(
        default_factory=dict,
        validate_default=True,
        description="Named sampling sets; `train` and `validation` always exist.",
    )
    default_profile: str = Field("train", description="Profile of rollouts that name none.")

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

    store: str = Field(
        "sqlite:///rollpin.db",
        description="Where records live: `sqlite:///PATH`, or `postgresql://…` for several proxies.",
    )
    durability: Literal["fsync", "wal"] = Field(
        "fsync", description="fsync survives a machine crash, wal a crash of the process."
    )

    admin_token: Secret = Field(None, description="Opens every control route; unset is minted once.")
    read_token: Secret = Field(None, description="Opens the reading routes; unset is minted once.")
    key_secret: Secret = Field(None, description="Signs rollout keys; replicas share it; unset is minted once.")
    secrets_file: Path = Field(Path("rollpin.secrets.json"), description="Where minted secrets are kept (mode 0600).")
    trust_rollout_header: bool = Field(False, description="Let X-Rollout-Id name the rollout.")
    auto_register: bool = Field(
        False, description="Create unknown rollouts on first use, any key accepted; loopback only."
    )

    limits: LimitSettings = LimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    log_format: Literal["console", "json"] = Field("console", description="How the log is written.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is logged.")

    @field_validator("public_url")
    @classmethod
    def _public_http_url(cls, value: str | None) -> str | None:
        return value if value is None else checked_url(value)

    @field_validator("media_hosts", mode="before")
    @classmethod
    def _hosts_as_list(cls, value: Any) -> Any:
        return _listed(value) if isinstance(value, str) else value

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

    @field_validator("engines", mode="before")
    @classmethod
    def _urls_as_engines(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = _listed(value)
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

    @field_validator("reasoning_field")
    @classmethod
    def _apart(cls, value: str) -> str:
        if value in MESSAGE_FIELDS:
            raise ValueError(f"{value!r} is another field of a message")
        return value

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

    @field_validator("store")
    @classmethod
    def _known_store(cls, value: str) -> str:
        return checked_store_url(value)

    @field_serializer("store", when_used="json")
    def _without_password(self, value: str) -> str:
        return shown_store_url(value, MASK)

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

    @property
    def store_path(self) -> Path:
        """The SQLite file of `store`; raises ValueError where it is none."""
        return sqlite_path(self.store)


def _listed(text: str) -> Any:
    """JSON if it looks so, else what stands between the commas."""
    return json.loads(text) if text.lstrip()[:1] in {"[", "{"} else [part.strip() for part in text.split(",")]


def config_file() -> Path:
    """rollpin.toml in the working folder, or the file that --config or ROLLPIN_CONFIG names."""
    return chosen_file.get() or Path(os.environ.get(CONFIG_VARIABLE) or CONFIG_FILE)


def checked_url(value: str) -> str:
    """A base URL without its last slash; raises ValueError unless it is plain http(s)."""
    parts = urlsplit(value)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL must not carry a user or a password")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _has_port(parts):
        raise ValueError(f"{value!r} is not an http(s) URL")
    if parts.query or parts.fragment:
        raise ValueError(f"{value!r} must not carry a query or a fragment")
    return value.rstrip("/")


def _has_port(parts: SplitResult) -> bool:
    """Whether the port, if any, is a number in range; asking for it is how urllib tells."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host in {"localhost", "::1"} or host.startswith("127.")


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


def faults(error: ValidationError, noun: str = "setting") -> list[str]:
    """One clear line per fault: where, what is wrong, and what stood there (secrets aside)."""
    return [line for item in error.errors() for line in _fault(item, noun)]


def _fault(item: ErrorDetails, noun: str) -> list[str]:
    where = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if not where:
        return message.split("\n")
    if item["type"] == "extra_forbidden":
        return [f"{where}: no such {noun}"]
    shown = item.get("input")
    if isinstance(shown, str | int | float) and repr(shown) not in message and not _may_hold_a_secret(where):
        return [f"{where}: {message} (got {shown!r:.80})"]
    return [f"{where}: {message}"]


def _may_hold_a_secret(where: str) -> bool:
    """Whether what stood there is better not shown: a secret, or what may carry one, as a URL may a password."""
    last = where.rpartition(".")[2]
    return last in {*SECRETS, "engines", "store"} or last.endswith("url")
