"""The list of checks: what each asks, what it means for training if it does not pass, and the flag that mends it.

docs/engines.md has this table too; `python -m proxy.check.page` prints it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from proxy.check import draws, server, tokens
from proxy.check.bench import Bench, Seen
from proxy.model import EngineKind

DIRECT = "name the engine itself in `engines`: sglang-router 0.3.2 drops fields that it does not know, smg keeps them"
NEWER: Mapping[EngineKind, str] = {"vllm": "use vLLM 0.32 or newer", "sglang": "use SGLang 0.5.23 or newer"}
DEV_MODE = "start vLLM with VLLM_SERVER_DEV_MODE=1, on a closed network"
DETERMINISTIC = "start SGLang with --enable-deterministic-inference"
BATCH_INVARIANT = "start vLLM with VLLM_BATCH_INVARIANT=1 (not on a CPU: there it kills the engine)"
APART = "nothing to do where one Rollpin is the only caller: it keeps classes apart; else evaluate on another engine"


@dataclass(frozen=True, slots=True)
class Check:
    """One question to an engine."""

    name: str
    asks: str
    means: str
    """For training, where it does not pass."""
    remedies: Mapping[EngineKind, str]
    seen_by: Callable[[Bench], Awaitable[Seen]]

    def remedy(self, kind: EngineKind) -> str:
        return self.remedies.get(kind) or self.remedies.get("vllm", "")


def both(remedy: str) -> Mapping[EngineKind, str]:
    return {"vllm": remedy, "sglang": remedy}


CHECKS = (
    Check(
        "identity",
        "Which engine is it, and how many ids does its model know?",
        "an id outside the vocabulary kills SGLang, so prompts of exact ids are not given to it",
        NEWER,
        server.identity,
    ),
    Check(
        "path",
        "Does everything that is sent arrive, the pin included?",
        "calls are neither captured nor pinned: what is trained on is not what was sampled",
        both(DIRECT),
        tokens.path,
    ),
    Check(
        "ids",
        "Do token ids and logprobs come back whole, streamed and not?",
        'calls fail, or with `missing_ids = "mask"` are not trained on',
        NEWER,
        tokens.ids,
    ),
    Check(
        "exact_prompts",
        "Does it go on from exact prompt ids?",
        "each turn is rendered anew: its prompt may depart from what was sampled, and begins a branch of its own",
        NEWER,
        tokens.exact_prompts,
    ),
    Check(
        "rendering",
        "Does it render conversations on request?",
        "no exact prefixes, and no call moves to another engine",
        NEWER,
        server.rendering,
    ),
    Check(
        "later_system",
        "Does its chat template print system messages behind the first words?",
        "a Messages conversation that holds one is refused by the engine, or goes on without it",
        both('set `later_system = "as_user"`: the Messages API then tells them as the user\'s'),
        server.later_system,
    ),
    Check(
        "seeds",
        "Does the same seed draw the same tokens, and another seed others?",
        "no call can be drawn again; if two seeds draw the same, a group's samples are one and its advantages are 0",
        {"vllm": "look for what drops `seed` on the way", "sglang": DETERMINISTIC},
        draws.seeds,
    ),
    Check(
        "company",
        "Does a seed draw the same beside other calls?",
        "no call can be drawn again once the engine is busy",
        {"vllm": BATCH_INVARIANT, "sglang": DETERMINISTIC},
        draws.company,
    ),
    Check(
        "classes",
        "Does a seed draw the same beside calls that filter?",
        "a greedy call, or one with top_p or top_k, changes the tokens of training calls in its batch",
        both(APART),
        draws.classes,
    ),
    Check(
        "determinism",
        "Does the engine promise that batches do not change tokens?",
        "no call is called replayable: a probe alone proves nothing under load",
        {"vllm": f"{BATCH_INVARIANT}; it tells only with VLLM_SERVER_DEV_MODE=1", "sglang": DETERMINISTIC},
        draws.determinism,
    ),
    Check(
        "resume",
        "Does a seed go on with the same draws behind a partial reply?",
        "an interrupted call is replayable part by part only",
        both("nothing to do: the rest of such a call gets a seed of its own"),
        draws.resume,
    ),
    Check(
        "logprobs",
        "Are logprobs those of what is sampled?",
        "ratios and KL are computed against another distribution than the one that was sampled",
        {
            "vllm": "start vLLM with --logprobs-mode processed_logprobs, or set temperature = 1 and no filters",
            "sglang": "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB, or set temperature = 1 and no filters",
        },
        tokens.logprobs,
    ),
    Check(
        "defaults",
        "Are sampling fields neutral that a caller leaves out?",
        "nothing for calls through Rollpin, which leaves none out; whoever asks the engine directly samples otherwise",
        {"vllm": "start vLLM with --generation-config vllm", "sglang": "start SGLang with --sampling-defaults openai"},
        tokens.defaults,
    ),
    Check(
        "parsers",
        "Do tool calls and reasoning come as fields?",
        "tool calls stay text, so the harness sees none",
        {
            "vllm": "start vLLM with --enable-auto-tool-choice --tool-call-parser NAME (and --reasoning-parser NAME)",
            "sglang": "start SGLang with --tool-call-parser NAME (and --reasoning-parser NAME)",
        },
        server.parsers,
    ),
    Check(
        "weights",
        "Does it tell the version of its weights?",
        "calls carry the version that the trainer announces, and nothing checks it",
        {"vllm": DEV_MODE, "sglang": NEWER["sglang"]},
        server.weights,
    ),
    Check(
        "truncation",
        "Does it refuse prompts that are too long?",
        "the recorded prompt is not the one that the model saw",
        {"vllm": "none known to cut", "sglang": "start SGLang without --allow-auto-truncate"},
        server.truncation,
    ),
    Check(
        "keep_alive",
        "Do idle connections outlive those that the proxy keeps?",
        "now and then a call meets a closing connection; it is tried once more before its first byte",
        {"vllm": "raise VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "sglang": "raise the keep-alive of what stands before SGLang"},
        server.keep_alive,
    ),
)
