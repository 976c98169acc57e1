"""Exact prefixes through NeMo-RL's field, against a scripted server: none of its own was at hand."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.echoes import compact
from tests.fakes import FakeEngine
from tests.fakes.front import serving
from tests.fakes.nemo_rl import NemoRl
from tests.served import served, settings_for
from tests.test_supply import talk


@pytest.fixture(params=[True, False], ids=["splices", "ignores"])
def nemo_rl(request: pytest.FixtureRequest) -> Iterator[tuple[NemoRl, str, FakeEngine]]:
    """A server that puts the required ids in, and one that takes no notice of them."""
    with FakeEngine("vllm", max_model_len=20_000) as vllm:
        server = NemoRl(vllm, splices=request.param)
        with serving(server) as url:
            yield server, url, vllm


def test_the_parents_ids_are_required_and_the_whole_prompt_is_proven(
    nemo_rl: tuple[NemoRl, str, FakeEngine], tmp_path: Path
) -> None:
    """The server finds the tail by itself; only where it comes to ours is the prefix supplied."""
    server, url, vllm = nemo_rl
    with served(settings_for(tmp_path, {"url": url, "kind": "nemo_rl"})) as proxy:
        client = proxy.rollout()
        talk(client, vllm, 3, compact)
        first, *later = client.calls()

    assert {call["engine"]["kind"] for call in (first, *later)} == {"nemo_rl"}
    assert all(call["capture"]["complete"] for call in (first, *later))
    assert next(filter(None, server.required)) == first["prompt_token_ids"] + first["completion_token_ids"]
    reason = "exact" if server.splices else "other_ids_came_back"
    assert [(call["prefix"]["reason"], call["prefix"]["supplied"]) for call in later] == [(reason, server.splices)] * 2
