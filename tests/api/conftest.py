"""Engines, proxies and rollouts: shared by the tests of a module where their state allows."""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import structlog

from tests.fakes import FakeEngine
from tests.served import RolloutClient, ServedProxy, served, settings_for

Start = Callable[..., tuple[ServedProxy, FakeEngine]]


@pytest.fixture(scope="session", autouse=True)
def _no_idle_waits() -> Iterator[None]:
    """Two waits that are longer than most of these tests, and no part of what they test.

    httpx loads all root certificates for each client. asyncio leaves Nagle's algorithm on for listeners that were made
    without naming TCP (uvloop, which serves the real proxy, does not), so that each second write waits 40 ms.
    """
    context = ssl.create_default_context()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", lambda **_: context)
        for place in ("proxy.planes._bind", f"{FakeEngine.__module__}._listen"):
            patch.setattr(place, _without_nagle(resolve_name(place)))
        yield


def _without_nagle(listen: Callable[..., socket.socket]) -> Callable[..., socket.socket]:
    def listen_promptly(*address: Any) -> socket.socket:
        listener = listen(*address)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    return listen_promptly


@pytest.fixture(scope="session", autouse=True)
def _plain_log() -> Iterator[None]:
    """Tracebacks as text: structlog's own, with every local variable, take seconds each."""
    structlog.configure(
        processors=[structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]
    )
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def shared_engine(request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    """One engine of each kind for a whole module."""
    with FakeEngine(request.param) as engine:
        yield engine


@pytest.fixture(scope="module")
def proxy(shared_engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    """A proxy with default settings in front of it."""
    with served(settings_for(tmp_path_factory.mktemp("proxy"), shared_engine.url)) as proxy:
        yield proxy


@pytest.fixture
def engine(shared_engine: FakeEngine) -> Iterator[FakeEngine]:
    """The shared engine with an empty script."""
    yield shared_engine
    shared_engine._engine._queue.clear()
    shared_engine.always(None)


@pytest.fixture
def rollout(proxy: ServedProxy, engine: FakeEngine) -> Iterator[RolloutClient]:
    """A new rollout of the shared proxy."""
    client = proxy.rollout()
    yield client
    client.http.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a proxy with settings of its own, and an engine for it; both end with the test."""
    with ExitStack() as running:

        def start_one(kind: Any = "vllm", *, engine: dict[str, Any] | None = None, **fields: Any) -> Any:
            fake = running.enter_context(FakeEngine(kind, **(engine or {})))
            return running.enter_context(served(settings_for(tmp_path, fake.url, **fields))), fake

        yield start_one
