"""Sampling classes on a deterministic SGLang: kept apart by the gate, or disturbed and marked."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, Fault
from tests.patience import until
from tests.served import RolloutClient, ServedProxy, served, settings_for

GREEDY = {"train": {}, "validation": {"temperature": 0.0}}


def settings(folder: Path, engine: FakeEngine, **timeouts: float) -> Any:
    return settings_for(folder, engine.url, profiles=GREEDY, timeouts=timeouts)


def train(proxy: ServedProxy, run: str) -> RolloutClient:
    """The same group and sample each time, so the same draw."""
    return proxy.rollout(run=run, group="g", sample=0)


def ids(client: RolloutClient) -> list[int]:
    return list(client.call()["completion_token_ids"])


@contextmanager
def greedy_call(proxy: ServedProxy, engine: FakeEngine) -> Iterator[RolloutClient]:
    """Whose call is greedy, and at work in the engine for the block."""
    engine.script(Fault.halt())
    client = proxy.rollout(profile="validation")
    with ThreadPoolExecutor() as threads:
        running = threads.submit(client.chat, max_tokens=16)
        until(lambda: engine.halted == 1)
        try:
            yield client
        finally:
            engine.go_on()
        assert running.result().status_code == 200


def is_awaited(proxy: ServedProxy, engine: FakeEngine) -> bool:
    """Whether a call waits for its turn with the engine."""
    return bool(proxy.wiring.upstream.gates._gates[engine.url].waiting)


def test_classes_take_turns_so_a_greedy_call_changes_no_training_token(tmp_path: Path) -> None:
    """The training call waits, draws what it draws alone, and nothing is marked."""
    with FakeEngine("sglang") as engine, served(settings(tmp_path, engine)) as proxy:
        alone, beside = train(proxy, "alone"), train(proxy, "beside")
        alone.chat(max_tokens=16)
        with ThreadPoolExecutor() as threads, greedy_call(proxy, engine) as greedy:
            threads.submit(beside.chat, max_tokens=16)
            until(lambda: is_awaited(proxy, engine))

        assert ids(beside) == ids(alone)
        assert not any("class_disturbed" in client.call()["replayable"]["reasons"] for client in (greedy, beside))


def test_a_call_whose_patience_ended_is_disturbed_and_both_are_marked(tmp_path: Path) -> None:
    """The tokens do differ from those it draws alone; nobody may replay it."""
    with FakeEngine("sglang") as engine, served(settings(tmp_path, engine, class_patience_s=0.05)) as proxy:
        alone, beside = train(proxy, "alone"), train(proxy, "beside")
        alone.chat(max_tokens=16)
        with greedy_call(proxy, engine) as greedy:
            assert beside.chat(max_tokens=16).status_code == 200

        assert ids(beside) != ids(alone)
        for client in (greedy, beside):
            assert client.call()["replayable"] == {"value": "no", "reasons": ["class_disturbed"]}


@pytest.mark.parametrize(("kind", "deterministic"), [("vllm", True), ("sglang", False)])
def test_no_other_engine_makes_classes_wait(tmp_path: Path, kind: Any, *, deterministic: bool) -> None:
    """Where batches do not mix draws, or seeds mean nothing, a call starts at once."""
    with (
        FakeEngine(kind, deterministic=deterministic) as engine,
        served(settings(tmp_path, engine)) as proxy,
        greedy_call(proxy, engine),
    ):
        assert train(proxy, "beside").chat(max_tokens=16).status_code == 200
        assert engine.halted == 1
