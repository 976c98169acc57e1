"""Whether a profile can be honoured by an engine: pure judgement over what the engine said of itself.

Sources: facts seen on vLLM 0.32.0 and SGLang 0.5.23; docs/engines.md tells each with its remedy.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from proxy.engine.parts import VERSION_NOT_TOLD, WEIGHTS_CHANGED
from proxy.model import Ask, Completion, EngineFacts, Failure, Finding, Outcome, Plan, Profile, Replayable, Segment

# vLLM raises any temperature above 0 and below this to it (vllm/sampling_params.py, _MAX_TEMP).
VLLM_LEAST_TEMPERATURE = 0.01

Severity: TypeAlias = Literal["warn", "refuse"]
# What becomes of judgements where replay is not required, and where it is: `replay` costs it, `lacking` leaves it open.
LENIENTLY: Mapping[str, Severity | None] = {"warn": "warn", "refuse": "refuse", "replay": "warn", "lacking": None}
STRICTLY: Mapping[str, Severity | None] = {"warn": "warn", "refuse": "refuse", "replay": "refuse", "lacking": "refuse"}


def check_fit(profile: Profile, engine: str, facts: EngineFacts, *, require_replayable: bool) -> tuple[Finding, ...]:
    """Everything that stands between this profile and this engine.

    Under `require_replayable` what would only be warned of becomes a refusal where it costs replay.
    """
    severities = STRICTLY if require_replayable else LENIENTLY
    return tuple(
        Finding(profile.name, engine, setting, shown, message, remedy)
        for setting, severity, message, remedy in _judge(profile, facts)
        if (shown := severities[severity])
    )


def _judge(profile: Profile, facts: EngineFacts) -> Iterator[tuple[str, str, str, str]]:
    """(setting, severity, message, remedy); the severities `replay` and `lacking` depend on whether it is required."""
    if profile.is_greedy:
        yield (
            "temperature" if profile.temperature == 0 else "top_k",
            "warn",
            "greedy: the samples of a group will be identical and no seed changes that",
            "use a temperature above 0 for groups of more than one sample",
        )
    if facts.auto_truncates:
        yield (
            "engine",
            "refuse",
            "the engine cuts prompts that are too long without a word, so records would not match",
            "start it without --allow-auto-truncate",
        )
    if facts.honours_seeds and not (facts.proof and facts.proof.is_passed):
        yield from _judge_proof(facts)
    if facts.kind == "sglang":
        yield from _judge_sglang(profile, facts)
    else:
        yield from _judge_vllm(profile, facts)


def _judge_proof(facts: EngineFacts) -> Iterator[tuple[str, str, str, str]]:
    """An engine that did not pass its probe, and where replay is required one that was not put to it."""
    if facts.proof is None:
        yield "probe", "lacking", "nothing has shown yet that it draws the same again", "set prove_engines = true"
    else:
        yield (
            "probe",
            "replay",
            f"its probe failed: {'; '.join(facts.proof.faults)}",
            "run `rollpin check`",
        )


def _judge_sglang(profile: Profile, facts: EngineFacts) -> Iterator[tuple[str, str, str, str]]:
    if profile.model not in {None, facts.model}:
        yield (
            "model",
            "refuse",
            "SGLang answers to any name with the one model that it has, and that has another name",
            "name the model that the engine serves, or leave the profile's model unset",
        )
    if profile.min_p > 0 and facts.honours_seeds:
        yield (
            "min_p",
            "refuse",
            "a seeded request with min_p above 0 kills the SGLang server",
            "set min_p = 0",
        )
    if not facts.honours_seeds:
        yield (
            "seed",
            "replay",
            "the engine accepts seeds and ignores them",
            "start SGLang with --enable-deterministic-inference",
        )
    if _has_penalties(profile):
        yield (
            "penalties",
            "replay",
            "penalties count output tokens only, so an interrupted call cannot be resumed exactly",
            "set repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0",
        )
    if profile.top_p < 1 or profile.top_k > 0:
        yield (
            "top_p/top_k",
            "warn",
            "SGLang reports logprobs from before top-p and top-k, not those of the truncated distribution",
            "set top_p = 1 and top_k = -1 for training",
        )


def _judge_vllm(profile: Profile, facts: EngineFacts) -> Iterator[tuple[str, str, str, str]]:
    if 0 < profile.temperature < VLLM_LEAST_TEMPERATURE:
        yield (
            "temperature",
            "replay",
            f"vLLM raises temperatures below {VLLM_LEAST_TEMPERATURE} to it",
            f"set it to 0 or to {VLLM_LEAST_TEMPERATURE} or more",
        )
    if reshapes(profile) and facts.logprobs_mode != "processed_logprobs":
        yield (
            "logprobs",
            "replay",
            "vLLM reports raw logprobs unless told otherwise: not those of the distribution that is sampled here",
            "start vLLM with --logprobs-mode processed_logprobs, or set temperature = 1 and every filter to neutral",
        )


def _has_penalties(profile: Profile) -> bool:
    return (profile.repetition_penalty, profile.presence_penalty, profile.frequency_penalty) != (1.0, 0.0, 0.0)


def reshapes(profile: Profile) -> bool:
    """Whether what is sampled differs from what the bare logits say."""
    neutral = Profile(profile.name)
    return profile.temperature not in {0, 1} or any(
        getattr(profile, name) != getattr(neutral, name) for name in neutral.pinned() if name != "temperature"
    )


def judge_replay(
    plan: Plan, outcome: Outcome, segments: Sequence[Segment] = (), *, is_disturbed: bool = False
) -> Replayable:
    """Whether this call's tokens can be drawn again; never `yes` without a guarantee and a passed probe."""
    if isinstance(outcome, Failure):
        return Replayable("no", (outcome.kind,))
    disturbed = ("class_disturbed",) if is_disturbed else ()
    against = tuple(dict.fromkeys((*_against_replay(plan, outcome), *_weights_against(segments), *disturbed)))
    if against:
        return Replayable("no", against)
    unproven = tuple(_unproven(plan.engine.facts))
    return Replayable("unproven", unproven) if unproven else Replayable("yes")


def _unproven(facts: EngineFacts) -> Iterator[str]:
    if facts.proof is None:
        yield "no_replay_probe"
    elif not facts.proof.is_passed:
        yield "replay_probe_failed"
    if not facts.deterministic:
        yield "determinism_not_reported"


def _against_replay(plan: Plan, completion: Completion) -> Iterator[str]:
    yield from completion.capture_gaps
    if not plan.engine.facts.honours_seeds:
        yield "engine_ignores_seeds"


def tells_candidates(ask: Ask, facts: EngineFacts) -> bool:
    """Whether the candidates of each draw come back by id: SGLang's chat tells them in whole replies alone.

    Only where its noise is a function of the seed do they serve the audit.
    """
    is_keyed = facts.kind == "sglang" and bool(facts.deterministic)
    return is_keyed and not ask.stream and ask.api != "completions"


def _weights_against(segments: Sequence[Segment]) -> Iterator[str]:
    """What the weights of a reply's segments say against drawing it again: there is no going back to a mixture."""
    if len({segment.weight_version for segment in segments}) > 1:
        yield WEIGHTS_CHANGED
    if any(segment.kv_version is not None for segment in segments):
        yield "kv_of_other_weights"
    yield from (note for segment in segments for note in segment.notes if note != VERSION_NOT_TOLD)
