"""How each kind of engine is paused, resumed and rid of its prefix cache, and what it says of its weights.

As data: who asks, and in which order, stands in proxy/update.py. SGLang 0.5.23; vLLM 0.32.0, whose endpoints for
trainers are there in development mode only (VLLM_SERVER_DEV_MODE=1).
"""

import re
from dataclasses import dataclass

from proxy.engine.answer import Answer
from proxy.model import EngineFacts, EngineKind, EngineRequest, PauseMode

# The oldest versions on which a cache salt was seen to keep prefixes apart.
SALT_SEEN_ON: dict[EngineKind, tuple[int, ...]] = {"vllm": (0, 32, 0), "sglang": (0, 5, 23), "nemo_rl": (0, 32, 0)}


@dataclass(frozen=True, slots=True)
class Controls:
    """One kind's endpoints for trainers."""

    modes: tuple[PauseMode, ...]
    keeps_kv: frozenset[PauseMode]
    """Modes under which running calls go on with the cache that the old weights computed."""
    resume: EngineRequest
    flush: EngineRequest
    version_path: str

    def pause(self, mode: PauseMode) -> EngineRequest:
        raise NotImplementedError

    def has_flushed(self, answer: Answer) -> bool:
        raise NotImplementedError


class SglangControls(Controls):
    """`retract` computes the cache of running calls anew, `in_place` keeps it."""

    def pause(self, mode: PauseMode) -> EngineRequest:
        return EngineRequest("/pause_generation", {"mode": mode})

    def has_flushed(self, answer: Answer) -> bool:
        return answer.status == 200


class VllmControls(Controls):
    """`keep` computes the cache of running calls anew after the pause, for all its name says."""

    def pause(self, mode: PauseMode) -> EngineRequest:
        return EngineRequest(f"/pause?mode={mode}", {})

    def has_flushed(self, answer: Answer) -> bool:
        return answer.status == 200 and isinstance(answer.body, dict) and answer.body.get("success") is True


VLLM = VllmControls(
    modes=("abort", "wait", "keep"),
    keeps_kv=frozenset(),
    resume=EngineRequest("/resume", {}),
    flush=EngineRequest("/reset_prefix_cache", {}),
    version_path="/weight_info",
)
CONTROLS: dict[EngineKind, Controls] = {
    "sglang": SglangControls(
        modes=("abort", "retract", "in_place"),
        keeps_kv=frozenset({"in_place"}),
        resume=EngineRequest("/continue_generation", {}),
        flush=EngineRequest("/flush_cache", {}),
        version_path="/model_info",
    ),
    "vllm": VLLM,
    # NeMo-RL serves vLLM; whether its own server has these endpoints was not seen.
    "nemo_rl": VLLM,
}


def reported_version(answer: Answer) -> str | None:
    """The weight version that an engine tells, under the name that both kinds give it."""
    version = answer.body.get("weight_version") if answer.status == 200 and isinstance(answer.body, dict) else None
    return version if isinstance(version, str) else None


def reports_version(facts: EngineFacts) -> bool:
    """Whether the engine told its weights when it was looked at."""
    return facts.details.get("weight_version") is not None


def trusts_salt(facts: EngineFacts) -> bool:
    """Whether a salt is known to keep this engine's cached prefixes apart."""
    version = tuple(int(part) for part in re.findall(r"\d+", facts.version)[:3])
    return version >= SALT_SEEN_ON[facts.kind]
