"""Engines, proxies and rollouts: shared by the tests of a module where their state allows."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine
from tests.served import RolloutClient, ServedProxy, served, settings_for

Start = Callable[..., tuple[ServedProxy, FakeEngine]]


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
