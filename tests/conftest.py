"""What every test shares."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.chance import Lots
from tests.pace import Pace
from tests.patience import PATIENCE_S
from tests.postgres import PostgresServer, running_server

# No test is timed: a busy machine may take as long as it needs for an example.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("other", UNTIMED)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Another lot is another run of the same tests: other rollouts, other seeds, other replies, other examples."""
    parser.addoption("--lot", help="draw other ids, seeds and examples in every test")
    parser.addoption("--pace", help="let loops, threads and clients stand still at times, drawn from this word")


def pytest_configure(config: pytest.Config) -> None:
    """Examples are the same ones in each run unless others are asked for, and clients wait."""
    settings.load_profile("other" if config.getoption("lot") else "same")
    # A client that names no time would give up after 5 s, which is nothing to a busy machine.
    for phase in ("connect", "read", "write", "pool"):
        setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, phase, PATIENCE_S)


@pytest.fixture(autouse=True)
def lots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test draws the same ids whenever it runs."""
    source = f"{request.config.getoption('lot')} {request.node.nodeid}"
    monkeypatch.setattr("proxy.clock.secrets", Lots(source))


@pytest.fixture(autouse=True)
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that nothing else uses a test goes at its usual pace, unless another one is asked for."""
    if word := request.config.getoption("pace"):
        Pace(f"{word} {request.node.nodeid}").disturb(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def _one_trust() -> Iterator[None]:
    """One set of root certificates for all clients: httpx reads them for each, which takes longer than most tests.

    The SDKs of OpenAI and Anthropic bring a second httpx.
    """
    trust = httpx.create_ssl_context()
    with pytest.MonkeyPatch.context() as patch:
        for library in ("httpx", "httpx2"):
            patch.setattr(f"{library}._transports.default.create_ssl_context", lambda **_: trust)
        yield


@pytest.fixture(scope="session", autouse=True)
def _plain_log() -> Iterator[None]:
    """Tracebacks as text: structlog's own, with every local variable, take seconds each."""
    structlog.configure(
        processors=[structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]
    )
    yield
    structlog.reset_defaults()


@pytest.fixture
def anyio_backend() -> str:
    """Servers and stores run on asyncio alone."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests that ask for it; where it does not start they fail with its words."""
    with running_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place of each kind that a store can be in."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_schema()
