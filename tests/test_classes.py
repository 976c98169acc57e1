"""Sampling classes on a deterministic SGLang: kept apart by the gate, or disturbed and marked."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, Fault
from tests.served import RolloutClient, ServedProxy, served, settings_for

GREEDY = {"train": {}, "validation": {"temperature": 0.0}}


def settings(folder: Path, engine: FakeEngine, **timeouts: float) -> Any:
    return settings_for(folder, engine.url, profiles=GREEDY, timeouts=timeouts)


def train(proxy: ServedProxy, run: str) -> RolloutClient:
    """The same group and sample each time, so the same draw."""
    return proxy.rollout(run=run, group="g", sample=0)


def ids(client: RolloutClient) -> list[int]:
    return list(client.call()["completion_token_ids"])


def beside_a_greedy_call(proxy: ServedProxy, engine: FakeEngine, run: str) -> tuple[RolloutClient, RolloutClient]:
    """A training call that arrives while a slow greedy one runs."""
    engine.script(Fault.slow(0.05))
    greedy, plain = proxy.rollout(profile="validation"), train(proxy, run)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(greedy.chat, max_tokens=16)
        while not engine.running:
            threading.Event().wait(0.005)
        assert plain.chat(max_tokens=16).status_code == slow.result().status_code == 200
    return greedy, plain


def test_classes_take_turns_so_a_greedy_call_changes_no_training_token(tmp_path: Path) -> None:
    """The training call waits, draws what it draws alone, and nothing is marked."""
    with FakeEngine("sglang") as engine, served(settings(tmp_path, engine)) as proxy:
        alone = train(proxy, "alone")
        alone.chat(max_tokens=16)
        greedy, beside = beside_a_greedy_call(proxy, engine, "beside")

        assert ids(beside) == ids(alone)
        assert not any("class_disturbed" in client.call()["replayable"]["reasons"] for client in (greedy, beside))


def test_a_call_whose_patience_ended_is_disturbed_and_both_are_marked(tmp_path: Path) -> None:
    """The tokens do differ from those it draws alone; nobody may replay it."""
    with FakeEngine("sglang") as engine, served(settings(tmp_path, engine, class_patience_s=0.05)) as proxy:
        alone = train(proxy, "alone")
        alone.chat(max_tokens=16)
        greedy, beside = beside_a_greedy_call(proxy, engine, "beside")

        assert ids(beside) != ids(alone)
        for client in (greedy, beside):
            assert client.call()["replayable"] == {"value": "no", "reasons": ["class_disturbed"]}


@pytest.mark.parametrize(("kind", "deterministic"), [("vllm", True), ("sglang", False)])
def test_no_other_engine_makes_classes_wait(tmp_path: Path, kind: Any, *, deterministic: bool) -> None:
    """Where batches do not mix draws, or seeds mean nothing, a call starts at once."""
    with (
        FakeEngine(kind, deterministic=deterministic) as engine,
        served(settings(tmp_path, engine)) as proxy,
        ThreadPoolExecutor() as threads,
    ):
        engine.script(Fault.slow(0.1))
        greedy = proxy.rollout(profile="validation")
        slow = threads.submit(greedy.chat, max_tokens=16)
        while not engine.running:
            threading.Event().wait(0.005)
        train(proxy, "beside").chat(max_tokens=16)

        assert not slow.done()
