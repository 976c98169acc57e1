"""How a command ends early: one line on stderr that says why, and a status."""

from pathlib import Path
from typing import NoReturn

import typer

from proxy.screen import say
from proxy.settings import Settings
from proxy.settings_sources import WrongSettings, load_settings

WRONG_SETTINGS = 2
NO_ANSWER = 1


def end(reason: str, status: int = NO_ANSWER) -> NoReturn:
    """Say why, and stop."""
    say(reason)
    raise typer.Exit(status)


def settings_or_end(flags: list[str], config: Path | None, *, to_serve: bool) -> Settings:
    """The settings, or the end: one line per fault."""
    try:
        return load_settings(flags, config, to_serve=to_serve)
    except WrongSettings as error:
        for fault in error.faults:
            say(fault)
        raise typer.Exit(WRONG_SETTINGS) from None
