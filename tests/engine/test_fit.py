"""Whether a profile fits an engine, and whether a call can be replayed: pure judgement."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.engine.fit import check_fit, judge_replay
from proxy.model import EngineFacts, Profile, Proof, Segment
from tests import make

TRAIN = Profile("train")
VLLM = make.engine(deterministic=None, proof=Proof()).facts
RAW = VLLM
PROCESSED = replace(VLLM, details={"logprobs_mode": "processed_logprobs"})
SGLANG = replace(VLLM, kind="sglang", deterministic=True)
LOOSE = replace(SGLANG, deterministic=False)
FAILED = replace(VLLM, proof=Proof(faults=("two seeds drew the same tokens",)))
FINDINGS: list[tuple[dict[str, Any], EngineFacts, dict[str, str]]] = [
    ({}, VLLM, {}),
    ({}, SGLANG, {}),
    ({"temperature": 0.0}, PROCESSED, {"temperature": "warn"}),
    ({"top_k": 1}, PROCESSED, {"top_k": "warn"}),
    ({"temperature": 0.005}, PROCESSED, {"temperature": "warn"}),
    ({"temperature": 0.01}, PROCESSED, {}),
    ({"temperature": 0.7}, RAW, {"logprobs": "warn"}),
    ({"temperature": 0.7}, PROCESSED, {}),
    ({"top_p": 0.9}, RAW, {"logprobs": "warn"}),
    ({"top_k": 20}, RAW, {"logprobs": "warn"}),
    ({"min_p": 0.1}, RAW, {"logprobs": "warn"}),
    ({"repetition_penalty": 1.1}, RAW, {"logprobs": "warn"}),
    ({"temperature": 0.7}, SGLANG, {}),
    ({"min_p": 0.1}, SGLANG, {"min_p": "refuse"}),
    ({"min_p": 0.1}, LOOSE, {"seed": "warn"}),
    ({}, LOOSE, {"seed": "warn"}),
    ({}, replace(SGLANG, deterministic=None), {"seed": "warn"}),
    ({"presence_penalty": 0.5}, SGLANG, {"penalties": "warn"}),
    ({"top_p": 0.9}, SGLANG, {"top_p/top_k": "warn"}),
    ({"top_k": 20}, SGLANG, {"top_p/top_k": "warn"}),
    ({"temperature": 0.0}, SGLANG, {"temperature": "warn"}),
    ({}, replace(SGLANG, auto_truncates=True), {"engine": "refuse"}),
    ({"model": "other"}, SGLANG, {"model": "refuse"}),
    ({"model": "policy"}, SGLANG, {}),
    ({"model": "other"}, VLLM, {}),
    ({}, replace(VLLM, proof=None), {}),
    ({}, FAILED, {"probe": "warn"}),
    ({"temperature": 0.7}, replace(VLLM, proof=Proof(logprobs="processed")), {}),
    ({"temperature": 0.7}, replace(PROCESSED, proof=Proof(logprobs="raw")), {"logprobs": "warn"}),
]
# Those that cost replay, and nothing else, become refusals.
STRICTLY_REFUSED: list[tuple[dict[str, Any], EngineFacts, dict[str, str]]] = [
    ({}, LOOSE, {"seed": "refuse"}),
    ({"temperature": 0.005}, PROCESSED, {"temperature": "refuse"}),
    ({"temperature": 0.7}, RAW, {"logprobs": "refuse"}),
    ({"presence_penalty": 0.5}, SGLANG, {"penalties": "refuse"}),
    ({"temperature": 0.0}, PROCESSED, {"temperature": "warn"}),
    ({"top_p": 0.9}, SGLANG, {"top_p/top_k": "warn"}),
    ({"min_p": 0.1}, SGLANG, {"min_p": "refuse"}),
    ({}, replace(VLLM, proof=None), {"probe": "refuse"}),
    ({}, FAILED, {"probe": "refuse"}),
]


def found(values: dict[str, Any], facts: EngineFacts, *, strictly: bool = False) -> dict[str, str]:
    findings = check_fit(replace(TRAIN, **values), "engine-0", facts, require_replayable=strictly)
    return {finding.setting: finding.severity for finding in findings}


@pytest.mark.parametrize(("values", "facts", "findings"), FINDINGS)
def test_a_profile_meets_these_findings(values: dict[str, Any], facts: EngineFacts, findings: dict[str, str]) -> None:
    """What an engine would ignore, bend or die of is told at the start."""
    assert found(values, facts) == findings


@pytest.mark.parametrize(("values", "facts", "findings"), STRICTLY_REFUSED)
def test_where_replay_is_required_its_loss_is_refused(
    values: dict[str, Any], facts: EngineFacts, findings: dict[str, str]
) -> None:
    """`require_replayable`."""
    assert found(values, facts, strictly=True) == findings


def test_a_finding_names_profile_engine_setting_and_remedy() -> None:
    """One line that tells what to do."""
    (finding,) = check_fit(TRAIN, "engine-0", LOOSE, require_replayable=False)

    assert finding.line().startswith("profile train on engine-0: seed: ")
    assert "--enable-deterministic-inference" in finding.line()


@pytest.mark.parametrize(
    ("facts", "verdict", "reasons"),
    [
        (SGLANG, "yes", ()),
        (replace(VLLM, deterministic=True), "yes", ()),
        (VLLM, "unproven", ("determinism_not_reported",)),
        (FAILED, "unproven", ("replay_probe_failed", "determinism_not_reported")),
        (replace(SGLANG, proof=None), "unproven", ("no_replay_probe",)),
        (replace(VLLM, proof=None), "unproven", ("no_replay_probe", "determinism_not_reported")),
        (LOOSE, "no", ("engine_ignores_seeds",)),
    ],
)
def test_replayable_takes_a_guarantee_and_a_passed_probe(
    facts: EngineFacts, verdict: str, reasons: tuple[str, ...]
) -> None:
    """Either alone leaves it unproven."""
    judged = judge_replay(make.plan(engine=replace(make.engine(), facts=facts)), make.completion())

    assert (judged.verdict, judged.reasons) == (verdict, reasons)


def test_a_disturbed_call_cannot_be_replayed() -> None:
    """Whatever the engine promises."""
    plan = make.plan(engine=replace(make.engine(), facts=SGLANG))

    assert judge_replay(plan, make.completion(), is_disturbed=True).reasons == ("class_disturbed",)


def test_a_failure_cannot_be_replayed() -> None:
    """Its kind is the reason."""
    assert judge_replay(make.plan(), make.failure("engine_cut")).reasons == ("engine_cut",)


def test_gaps_and_changed_weights_stand_against_replay() -> None:
    """Each with its reason."""
    segments = (Segment(0, 1, 7, "1", "e1"), Segment(1, 3, 7, "2", "e1", kv_version="1", notes=("stale_kv",)))
    judged = judge_replay(make.plan(), make.completion(capture_gaps=("usage_missing",)), segments)

    assert judged.verdict == "no"
    assert judged.reasons == ("usage_missing", "weights_changed_in_mid_reply", "kv_of_other_weights", "stale_kv")


def test_a_version_that_nobody_told_says_nothing_of_replay() -> None:
    """One set of weights drew it all, whatever its name."""
    segments = (Segment(0, 3, 7, None, "e1", notes=("version_not_told",)),)

    assert judge_replay(make.plan(), make.completion(), segments).verdict == "unproven"
