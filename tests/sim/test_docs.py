"""docs/sim.md tells all that there is."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from proxy.sim.faults import NUMBERED, PLAIN, TIMED, read_fault
from proxy.sim.scenario import PLACEHOLDERS, read_scenario, scenario_names

PAGE = (Path(__file__).parents[2] / "docs" / "sim.md").read_text()
FAULTS = re.findall(r"`([a-z_]+(?::[\d.]+)?)`", PAGE.partition("## Faults")[2].partition("While it runs")[0])


@pytest.mark.parametrize("name", [*PLAIN, *NUMBERED, *TIMED])
def test_every_fault_is_told(name: str) -> None:
    """With a number that it takes."""
    told = next(fault for fault in FAULTS if fault.partition(":")[0] == name)

    assert read_fault(told) == read_fault(name)


def test_every_flag_is_told() -> None:
    """Of those that the help shows."""
    help_text = CliRunner().invoke(app, ["sim", "--help"], env={"COLUMNS": "200"}).stdout
    flags = set(re.findall(r"^  (?:--\w[\w-]* / )?(--[\w-]+)", help_text, re.MULTILINE)) - {"--help", "--no-dev-mode"}

    assert flags
    assert {flag for flag in flags if f"`{flag}`" not in PAGE} <= {"--no-dev-mode"}


def test_every_placeholder_and_scenario_is_told() -> None:
    """By its name."""
    assert all(f"`{{{name}}}`" in PAGE for name in PLACEHOLDERS)
    assert all(f"`{name}`" in PAGE for name in scenario_names())


def test_the_scenario_on_the_page_is_one() -> None:
    """As it stands there."""
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

    assert [len(turn.calls) for turn in read_scenario("page", tomllib.loads(block)).turns] == [1, 0]
