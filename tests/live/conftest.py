"""Real engines, one at a time, each behind a proxy of its own. An engine that cannot start is a failure."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.engines.start import Engine, running
from tests.live.harness import Site
from tests.served import served, settings_for


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The tiny random model on each engine in turn."""
    with running(request.param) as engine:
        yield from behind_a_proxy(engine, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A small real model on vLLM."""
    with running("vllm", "smollm2") as engine:
        yield from behind_a_proxy(engine, tmp_path_factory.mktemp("smollm2"))


def behind_a_proxy(engine: Engine, folder: Path) -> Iterator[Site]:
    with served(settings_for(folder, engine.url, replays_at_once=16)) as proxy:
        yield Site(engine, proxy)
