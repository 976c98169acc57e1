"""What a few tokens prove of an engine, on simulated engines over real sockets."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.engine import pool
from proxy.engine.lab import Draw, Lab
from proxy.engine.look import Look
from proxy.engine.pool import DIALECTS
from proxy.engine.proof import prove
from proxy.engine.upstream import Upstream
from proxy.model import EngineRef, Proof
from tests.fakes import FakeEngine, Fault
from tests.patience import PATIENCE_S
from tests.served import served, settings_for

pytestmark = pytest.mark.anyio


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream(connect_s=PATIENCE_S, silence_s=PATIENCE_S, probe_s=PATIENCE_S, reply_bytes=1_000_000)
    yield made
    await made.aclose()


async def lab(upstream: Upstream, engine: FakeEngine) -> Lab:
    facts = await Look(upstream, engine.url, None).facts("auto")
    return Lab(upstream, EngineRef("e", engine.url, facts), DIALECTS[facts.kind])


@pytest.mark.parametrize(
    ("kind", "proof"),
    [
        ("vllm", Proof(takes_exact_prompts=True, draws_by_position=False, logprobs="raw")),
        ("sglang", Proof(takes_exact_prompts=True, draws_by_position=True, logprobs="processed")),
    ],
)
async def test_a_good_engine_passes_and_shows_its_ways(upstream: Upstream, kind: Any, proof: Proof) -> None:
    """Stream or position, raw or processed: found out, not read in a version."""
    with FakeEngine(kind) as engine:
        assert await prove(await lab(upstream, engine)) == proof


async def test_a_probe_is_small_and_of_the_plain_class(upstream: Upstream) -> None:
    """Some fifty tokens that no plain call beside them minds, and that nobody's cache is asked to keep apart."""
    with FakeEngine("sglang") as engine:
        await prove(await lab(upstream, engine))

    bodies = [request.body for request in engine.requests]
    assert sum(body["max_tokens"] for body in bodies) < 60
    assert {(body["top_p"], body["top_k"], body["min_p"]) for body in bodies} == {(1.0, -1, 0.0)}
    assert all(body["temperature"] >= 1 for body in bodies)


async def test_an_engine_that_says_itself_that_it_ignores_seeds_is_not_asked(upstream: Upstream) -> None:
    """It fails without a token."""
    with FakeEngine("sglang", deterministic=False) as engine:
        proof = await prove(await lab(upstream, engine))

    assert proof
    assert "ignores seeds" in proof.faults[0]
    assert engine.requests == []


async def test_seeds_that_are_ignored_in_silence_are_found_out(upstream: Upstream) -> None:
    """An engine that claims determinism and draws by chance."""
    with FakeEngine("sglang", deterministic=False) as engine:
        loose = await lab(upstream, engine)
        loose.engine = replace(loose.engine, facts=replace(loose.engine.facts, deterministic=True))
        proof = await prove(loose)

    assert proof
    assert proof.faults == ("the same seed drew other tokens the second time",)


@pytest.mark.parametrize("fault", [Fault.no_ids(), Fault.no_logprobs(), Fault.wrong_count()])
async def test_replies_without_their_tokens_fail(upstream: Upstream, fault: Fault) -> None:
    """Streamed or whole."""
    with FakeEngine("vllm") as engine:
        engine.always(fault)
        proof = await prove(await lab(upstream, engine))

    assert proof
    assert [line.split(" came")[0] for line in proof.faults] == ["a whole reply", "a streamed reply"]


async def test_an_engine_that_refuses_a_plain_call_fails_with_its_words(upstream: Upstream) -> None:
    """Told, not thrown."""
    with FakeEngine("vllm") as engine:
        engine.always(Fault.status(500))
        proof = await prove(await lab(upstream, engine))

    assert proof
    assert "refused a plain call" in proof.faults[0]


async def test_an_engine_that_lists_no_alternatives_is_probed_without_them(upstream: Upstream) -> None:
    """vLLM with a small --max-logprobs refuses them; calls do not need them."""
    with FakeEngine("vllm") as engine:
        engine.script(Fault.status(400))
        proof = await prove(await lab(upstream, engine))

    assert proof == Proof(takes_exact_prompts=True, draws_by_position=False, logprobs=None)
    assert [request.body["top_logprobs"] for request in engine.requests] == [5, 0, 0, 0, 0, 0]


async def test_an_engine_that_is_busy_is_asked_another_time(upstream: Upstream) -> None:
    """That says nothing of what it draws."""
    with FakeEngine("vllm") as engine:
        engine.always(Fault.refuse(503))

        assert await prove(await lab(upstream, engine)) is None


async def test_a_field_that_is_left_out_is_the_engines_own(upstream: Upstream) -> None:
    """The control experiment: what is not sent comes from the model's generation config."""
    with FakeEngine("sglang") as engine:
        bench = await lab(upstream, engine)
        await bench.draw(Draw(1, leave_out=("top_k",)))

    assert "top_k" not in engine.requests[0].body
    assert engine.requests[0].body["top_p"] == 1.0


def test_a_proxy_proves_its_engine_at_start_and_calls_are_replayable(tmp_path: Path) -> None:
    """A guarantee and a passed probe; readiness under `require_replayable` rests on both."""
    with (
        FakeEngine("sglang") as engine,
        served(settings_for(tmp_path, engine.url, prove_engines=True, require_replayable=True)) as proxy,
    ):
        client = proxy.rollout()
        client.chat()

        assert client.call()["replayable"] == {"value": "yes", "reasons": []}
        assert proxy.control.get("/readyz").status_code == 200


def test_where_replay_is_required_an_engine_that_fails_its_probe_keeps_the_proxy_from_starting(tmp_path: Path) -> None:
    """Refused before the first call."""
    with FakeEngine("vllm") as engine:
        engine.always(Fault.no_ids())
        settings = settings_for(tmp_path, engine.url, prove_engines=True, require_replayable=True)
        with pytest.raises(AssertionError, match="did not start"), served(settings):
            pass


def test_an_engine_that_was_busy_at_start_is_proven_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then its calls are unproven."""
    monkeypatch.setattr(pool, "WELL_LOOK_S", 3600.0)
    with FakeEngine("sglang") as engine:
        engine.always(Fault.refuse(503))
        with served(settings_for(tmp_path, engine.url, prove_engines=True)) as proxy:
            engine.always(None)
            early, late = proxy.rollout(), proxy.rollout()
            early.chat()
            proxy.do(proxy.wiring.pool.prove())
            late.chat()

            assert early.call()["replayable"] == {"value": "unproven", "reasons": ["no_replay_probe"]}
            assert late.call()["replayable"]["value"] == "yes"
