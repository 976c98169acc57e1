"""Going on after an interruption: whether the rest of a reply may be asked for, and the plan that asks for it. Pure.

An engine that is asked on from prompt and partial ids begins anew in everything but the ids: penalties, grammars, stop
strings and words it should not say are counted from there. Where one of them is in force the rest would be drawn from
another distribution, so the reply is not resumed.
"""

from collections.abc import Iterator
from dataclasses import replace

from proxy.model import Completion, JsonObject, Plan, Prefix, Sampling, Tokens

RESUMED = "resumed"
# Shaping fields that act on each token by itself; `min_tokens` is reduced by what has been drawn.
STATELESS_SHAPING = frozenset({"logit_bias", "allowed_token_ids", "min_tokens"})
NEUTRAL_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def resume_obstacle(plan: Plan, partial: Completion) -> str | None:
    """What keeps the rest of a reply from being asked for, in a word of docs/weights.md; None where nothing does."""
    return next(_obstacles(plan, partial), None)


def _obstacles(plan: Plan, partial: Completion) -> Iterator[str]:
    if partial.capture_gaps:
        yield "ids_incomplete"
    if plan.engine.facts.takes_exact_prompts is False or plan.engine.facts.kind == "nemo_rl":
        yield "exact_prompts_not_taken"
    if any(plan.sampling.effective.get(name, neutral) != neutral for name, neutral in NEUTRAL_PENALTIES.items()):
        yield "penalties"
    if plan.sampling.length.get("stop"):
        yield "stop_strings"
    if set(plan.sampling.constrained) - STATELESS_SHAPING:
        yield "constrained"
    if plan.ask.chat.get("continue_final_message"):
        yield "continued_message"


def is_position_keyed(plan: Plan) -> bool:
    """Whether the same seed goes on with the same noise behind the partial ids.

    SGLang's deterministic mode hashes seed and position; of others the probe must have shown it (vLLM's newer runner).
    """
    facts = plan.engine.facts
    shown = facts.proof.draws_by_position if facts.proof else None
    return bool(shown) or (shown is None and facts.kind == "sglang" and bool(facts.deterministic))


def rest_of(plan: Plan, drawn: Tokens, seed: int) -> Plan:
    """The plan for what is still to come behind `drawn`, with the rest of its budget."""
    ids = drawn.prompt_ids + drawn.completion_ids
    return replace(
        plan,
        seed=replace(plan.seed, value=seed),
        sampling=_reduced(plan.sampling, len(drawn.completion_ids)),
        prefix=Prefix(eligible=True, requested=True, supplied=False, length=len(ids), reason=RESUMED, token_ids=ids),
    )


def _reduced(sampling: Sampling, drawn: int) -> Sampling:
    """The same sampling with lengths counted from behind the tokens that were drawn."""
    length: JsonObject = dict(sampling.length)
    if sampling.max_tokens is not None:
        length["max_tokens"] = sampling.max_tokens - drawn
    shaping: JsonObject = dict(sampling.shaping)
    least = shaping.pop("min_tokens", 0) - drawn
    if least > 0:
        shaping["min_tokens"] = least
    return replace(sampling, length=length, shaping=shaping)
