"""What the harness tests share, and the table that they end with."""

from collections.abc import Callable, Iterator

import pytest

from tests.harnesses.harness import Harness
from tests.harnesses.kit.install import ensure_all
from tests.harnesses.roster import IN_CI, ROSTER
from tests.harnesses.stage import Stage, set_up
from tests.harnesses.table import Column, expected, in_columns, rows

SEEN = pytest.StashKey[dict[str, dict[Column, str]]]()
See = Callable[[Harness, Column, str], None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test is for each harness, or each that does a thing; those that CI has no time for are marked as long."""
    casts = {"harness": ROSTER, "housekeeper": [harness for harness in ROSTER if harness.afterwards]}
    for name, cast in casts.items():
        if name in metafunc.fixturenames:
            marks = [() if one.name in IN_CI else (pytest.mark.long,) for one in cast]
            params = [pytest.param(one, marks=own, id=one.name) for one, own in zip(cast, marks, strict=True)]
            metafunc.parametrize(name, params, scope="session")


def pytest_configure(config: pytest.Config) -> None:
    """An empty table."""
    config.stash[SEEN] = {}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install what the chosen tests need, before any of them has a time limit."""
    params = [value for item in session.items if hasattr(item, "callspec") for value in item.callspec.params.values()]
    if not session.config.option.collectonly:
        ensure_all(harness.package for harness in params if isinstance(harness, Harness))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table as it was seen."""
    if config.stash[SEEN]:
        terminalreporter.section("harnesses")
        terminalreporter.write_line(in_columns(rows(config.stash[SEEN])))


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One engine and one proxy for all."""
    with set_up(tmp_path_factory.mktemp("harnesses")) as stage:
        yield stage


@pytest.fixture
def see(request: pytest.FixtureRequest) -> See:
    """Write a cell of the table down, and hold it against what is known of the harness."""

    def see_cell(harness: Harness, column: Column, cell: str) -> None:
        request.config.stash[SEEN].setdefault(harness.name, {})[column] = cell
        assert cell == expected(harness)[column], f"{harness.name}, {column}"

    return see_cell
