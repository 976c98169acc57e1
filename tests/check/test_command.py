"""`rollpin check` as a command: table, JSON and exit status; and the page that is generated from the list of checks."""

import json
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from proxy.check.checks import CHECKS
from proxy.check.page import BEGIN, END, table
from proxy.cli import app
from tests.fakes import FakeEngine

ENGINES = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()


@pytest.fixture(autouse=True)
def bare_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str, columns: int = 80) -> Result:
    return CliRunner().invoke(app, ["check", *words], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [80, 100])
def test_every_check_has_a_line_that_fits(columns: int) -> None:
    """With its verdict, and below what mends what did not pass."""
    with FakeEngine("sglang", deterministic=False) as engine:
        result = run("--engines", engine.url, columns=columns)

    assert result.exit_code == 0
    assert all(len(line.rstrip()) <= columns for line in result.output.splitlines())
    for check in CHECKS:
        assert re.search(rf"^{check.name} +(pass|warn|fail|skip)  \S", result.output, re.MULTILINE), check.name
    assert "-> start SGLang with --enable-deterministic-inference" in " ".join(result.output.split())


def test_json_holds_every_check_and_the_status() -> None:
    """For scripts."""
    with FakeEngine("vllm") as engine:
        result = run("--engines", engine.url, "--json")

    told = json.loads(result.output)
    (shown,) = told["engines"]
    assert (told["status"], result.exit_code, shown["verdict"]) == (0, 0, "warn")
    assert [line["check"] for line in shown["checks"]] == [check.name for check in CHECKS]
    assert all(line["remedy"] and line["means"] and line["seen"] for line in shown["checks"])


def test_an_engine_that_cannot_be_reached_is_status_2() -> None:
    """With its reason."""
    result = run("--engines", "http://127.0.0.1:1")

    assert result.exit_code == 2
    assert "not checked: the engine cannot be reached" in result.output


def test_a_wrong_setting_is_status_2_before_any_engine_is_asked() -> None:
    """One line, as with serve."""
    result = run("--engines", "nonsense")

    assert result.exit_code == 2
    assert "is not an http(s) URL" in result.output


def test_the_page_has_the_table_of_checks() -> None:
    """`python -m proxy.check.page` prints it."""
    _, _, rest = ENGINES.partition(BEGIN)

    assert rest.partition(END)[0].strip() == table()


def test_every_check_has_a_remedy_for_both_engines() -> None:
    """A name once, and a question that ends as one."""
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.asks.endswith("?")
        assert check.remedy("vllm")
        assert check.remedy("sglang")
        assert check.remedy("nemo_rl")
