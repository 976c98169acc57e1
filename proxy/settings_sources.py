"""Where settings come from: flags over environment over file, with every fault told before anything starts."""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError, ValidationInfo, field_validator
from pydantic_settings import SettingsError

from proxy.settings import (
    CONFIG_VARIABLE,
    ENV_PREFIX,
    NESTED,
    EngineSettings,
    Settings,
    chosen_file,
    config_file,
    faults,
)


class ServeSettings(Settings):
    """The settings of a proxy that is to serve: without an engine there is nothing to ask."""

    @field_validator("engines")
    @classmethod
    def _at_least_one(cls, value: tuple[EngineSettings, ...], info: ValidationInfo) -> tuple[EngineSettings, ...]:
        if not value and not info.data.get("cassette"):
            raise ValueError("name at least one, by --engines URL, or in rollpin.toml")
        return value


class WrongSettings(Exception):
    """Settings that nothing can be started with; `faults` has one line for each."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__("; ".join(found))
        self.faults = tuple(found)


def load_settings(flags: Sequence[str] = (), config: Path | None = None, *, to_serve: bool = True) -> Settings:
    """Settings from flags, environment and file; raises WrongSettings with every fault that can be told.

    `to_serve` asks for at least one engine.
    """
    found = unknown_variables(os.environ)
    chosen = chosen_file.set(config)
    try:
        if (config or os.environ.get(CONFIG_VARIABLE)) and not config_file().is_file():
            found.append(f"config: no file {str(config_file())!r}")
        kind = ServeSettings if to_serve else Settings
        settings = kind(_cli_parse_args=with_profiles_joined(flags), _cli_exit_on_error=False)
    except ValidationError as error:
        found += faults(error)
    except SettingsError as error:
        found += _unreadable(str(error))
    except OSError as error:
        found.append(f"{config_file()}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        found.append(f"{config_file()}: {error}")
    finally:
        chosen_file.reset(chosen)
    if found:
        raise WrongSettings(found)
    return settings


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """One line for each ROLLPIN_ variable that sets nothing."""
    return [f"{name}: no such setting" for name in sorted(environment) if _sets_nothing(name)]


def _sets_nothing(variable: str) -> bool:
    if not variable.upper().startswith(ENV_PREFIX) or variable == CONFIG_VARIABLE:
        return False
    name, nested, _ = variable[len(ENV_PREFIX) :].lower().partition("__")
    return name not in (NESTED if nested else Settings.model_fields)


def with_profiles_joined(flags: Sequence[str]) -> list[str]:
    """The flags with each `--profiles.NAME.KEY VALUE` joined into one `--profiles JSON`.

    Profiles have names of the user's own, so no parser can know these flags beforehand.
    """
    others, profiles = list[str](), dict[str, dict[str, Any]]()
    waiting = iter(flags)
    for flag in waiting:
        name, has_value, value = flag.partition("=")
        match name.split("."):
            case ["--profiles", profile, key] if has_value or (value := next(waiting, "")):
                profiles.setdefault(profile, {})[key.replace("-", "_")] = _json_or_text(value)
            case _:
                others.append(flag)
    if profiles and any(flag.partition("=")[0] == "--profiles" for flag in others):
        raise SettingsError("--profiles: give it either whole or value by value")
    return [*others, "--profiles", json.dumps(profiles)] if profiles else others


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _unreadable(message: str) -> list[str]:
    """pydantic-settings' own words for a value that is no JSON or a flag that is none, as lines of ours."""
    if match := re.search(r'field "(\w+)" from source', message):
        return [f"{match[1]}: not valid JSON"]
    if match := re.search(r"unrecognized arguments: (.*)", message):
        words = match[1].split()
        return [f"{word}: no such setting" for word in words if word.startswith("--")] or [f"{words[0]}: not a flag"]
    return [message.removeprefix("error parsing CLI: ").removeprefix("argument ")]
