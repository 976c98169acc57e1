"""Real engines, one at a time, each behind a proxy of its own. An engine that cannot start is a failure.

A start takes a minute, so modules share an engine that is already there, and tests run in the order of their engines.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.live.engines.places import Kind
from tests.live.engines.start import Engine, running
from tests.live.harness import Site, Tell, site_before

# The small real model last among those that share; tests with engines of their own after all of them.
ORDER = ("vllm", "sglang", "real_model", "own")
FIGURES = pytest.StashKey[list[str]]()


class Stage:
    """Room for one engine."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._key: tuple[Kind, str] | None = None
        self._engine: Engine | None = None

    def engine(self, kind: Kind, model: str) -> Engine:
        """This engine, started if another stands there or none."""
        if self._engine is None or self._key != (kind, model) or not self._engine.is_alive():
            self.clear()
            self._engine = self._stack.enter_context(running(kind, model))
            self._key = (kind, model)
        return self._engine

    def clear(self) -> None:
        """Stop the engine, if there is one."""
        self._stack.close()
        self._engine = self._key = None


def pytest_configure(config: pytest.Config) -> None:
    """No figure has been seen yet."""
    config.stash[FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The figures as they were seen, for the docs that quote them."""
    if config.stash[FIGURES]:
        terminalreporter.section("figures")
        for line in config.stash[FIGURES]:
            terminalreporter.write_line(line)


@pytest.fixture
def tell(pytestconfig: pytest.Config) -> Tell:
    """Keep a line for the end of the run."""
    return pytestconfig.stash[FIGURES].append


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one engine behind one another; the sort keeps the order of the rest."""
    items.sort(key=lambda item: ORDER.index(engine_of(item)))


def engine_of(item: pytest.Item) -> str:
    """Which engine a test stands before."""
    names = getattr(item, "fixturenames", ())
    if "site" in names:
        return str(item.callspec.params["site"])  # type: ignore[attr-defined]
    return "real_model" if "real_model" in names else "own"


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.clear()


@pytest.fixture(autouse=True)
def _room(request: pytest.FixtureRequest, stage: Stage) -> None:
    """Two cores bear one engine at a time: tests that start their own find an empty stage."""
    if engine_of(request.node) == "own":
        stage.clear()


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def site(request: pytest.FixtureRequest, stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The tiny random model on each engine in turn."""
    engine = stage.engine(request.param, "tiny")
    with site_before(engine, tmp_path_factory.mktemp(request.param), replays_at_once=16) as site:
        yield site


@pytest.fixture(scope="module")
def real_model(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A small real model on vLLM."""
    with site_before(stage.engine("vllm", "smollm2"), tmp_path_factory.mktemp("smollm2")) as site:
        yield site
