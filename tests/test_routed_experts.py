"""Which experts of a mixture were at work: kept as the engine says it, where that is wanted.

Against the simulated engine alone: no mixture of experts was run.
"""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine, Fault
from tests.served import served, settings_for

TALK = {"max_tokens": 20, "min_tokens": 20}


def experts(ids: list[int]) -> str:
    """What the simulated engine makes up."""
    return base64.b64encode(bytes(token % 8 for token in ids)).decode()


@pytest.mark.parametrize(("kind", "stream"), [("vllm", False), ("sglang", False), ("sglang", True)])
def test_routed_experts_are_kept_part_by_part(tmp_path: Path, kind: Any, *, stream: bool) -> None:
    """One text for each part of a reply, untouched; the client sees none of it."""
    with (
        FakeEngine(kind, mixture=True) as engine,
        served(settings_for(tmp_path, engine.url, capture_routed_experts=True)) as proxy,
    ):
        client = proxy.rollout()
        engine.script(Fault.abort(5))
        answer = client.chat(stream=stream, **TALK)
        call = client.call()

    ids = call["completion_token_ids"]
    assert call["routed_experts"] == [experts(ids[:5]), experts(ids[5:])]
    assert "routed_experts" not in answer.text


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_routed_experts_are_not_kept_unasked(tmp_path: Path, kind: Any) -> None:
    """They can be larger than all the rest; SGLang is not even asked."""
    with FakeEngine(kind, mixture=True) as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        client.chat(**TALK)

        assert client.call()["routed_experts"] is None
        assert "return_routed_experts" not in engine.requests[0].body


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_engine_without_experts_has_none_to_tell(tmp_path: Path, kind: Any) -> None:
    """A dense model, or a server that was not started for it."""
    with FakeEngine(kind) as engine:
        settings = settings_for(tmp_path, engine.url, capture_routed_experts=True)
        with served(settings) as proxy:
            client = proxy.rollout()
            client.chat(**TALK)

            assert client.call()["routed_experts"] is None
