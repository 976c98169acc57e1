"""The same proof on a small real model, SmolLM2-135M-Instruct on vLLM."""

from pathlib import Path

from tests.harnesses.harness import Aim
from tests.harnesses.kit.install import ensure_installed
from tests.harnesses.kit.running import run_harness
from tests.harnesses.observe import is_whole, prefixes
from tests.harnesses.recipes.programs import SMOLAGENTS
from tests.live.harness import LOGPROB_TOLERANCE, Site, Tell, largest_difference, plain, tokens_of

QUESTION = "What is the capital of France? Answer in one sentence."


def test_samples_of_a_real_model_differ_and_each_can_be_drawn_again(real_model: Site) -> None:
    """Two samples, each drawn twice."""
    first = [tokens_of(real_model.rollout("capital", sample), QUESTION, max_tokens=24) for sample in range(2)]
    again = [tokens_of(real_model.rollout("capital", sample), QUESTION, max_tokens=24) for sample in range(2)]

    assert again == first
    assert first[0] != first[1]


def test_a_streamed_reply_of_a_real_model_has_the_tokens_of_the_whole_one(real_model: Site) -> None:
    """Same seed, same ids, same text."""
    whole, streamed = real_model.rollout("mode"), real_model.rollout("mode")
    text = whole.chat(QUESTION, max_tokens=24).json()["choices"][0]["message"]["content"]
    chunks = streamed.stream(QUESTION, max_tokens=24)

    assert whole.call()["completion_token_ids"] == streamed.call()["completion_token_ids"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]) == text


def test_logprobs_of_a_real_model_are_the_policys_own(real_model: Site, tell: Tell) -> None:
    """transformers says the same, within 1e-4."""
    calls = plain(real_model.all_calls())
    worst = largest_difference(real_model.engine, calls)
    tell(f"vllm, smollm2: {len(calls)} calls within {worst:.1e} of transformers")

    assert len(calls) >= 6
    assert worst < LOGPROB_TOLERANCE


def test_a_real_harness_on_a_real_model_leaves_a_perfect_record(real_model: Site, tmp_path: Path, tell: Tell) -> None:
    """smolagents demands a tool call of a model too small for its task: whatever comes of it, nothing is lost."""
    ensure_installed(SMOLAGENTS.package)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "note.txt").write_text("seven\n")
    rollout = real_model.rollout("harness", sampling={"max_tokens_cap": 64})
    setup = SMOLAGENTS.prepare(Aim(rollout.created["base_url"], rollout.created["api_key"]), "Read note.txt.")
    env = {**setup.quiet, **setup.env, "MAX_STEPS": "3"}
    run = run_harness(setup.command, tmp_path, env=env, files={}, limit_s=600)
    calls = rollout.calls()
    tell(f"vllm, smollm2: smolagents made {len(calls)} calls, {prefixes(calls)} prefixes supplied")

    assert run.status == 0, run
    assert len(calls) >= 3
    assert all(map(is_whole, calls)), [call["failure"] for call in calls]
    assert all(call["prefix"]["supplied"] or not call["prefix"]["eligible"] for call in calls)
