"""How many tokens a reply may take: what fits the model's context, and what the rollout may still generate."""

import json

from proxy.engine.completions import measured_text
from proxy.engine.dialect import engine_messages
from proxy.engine.pool import DIALECTS
from proxy.errors import BadAsk, EngineFault
from proxy.model import Ask, EngineRef, EngineRequest, Prefix, Profile
from proxy.request.conversation import TEMPLATE_FIELDS
from proxy.request.prompt import prompt_ids
from proxy.request.sampling import Room, asked_max_tokens
from proxy.wiring import Wiring

# Bytes of a request that its prompt's tokens never exceed, beyond the conversation itself: the template's own words.
TEMPLATE_ALLOWANCE = 4096


async def decide_room(ask: Ask, profile: Profile, engine: EngineRef, prefix: Prefix, wiring: Wiring) -> Room:
    """Both bounds on the reply. Raises BadAsk where the prompt fills the context."""
    budget = await measure_budget(ask, wiring)
    if prefix.requested:
        return Room(context=context_left(prefix.length, engine), budget=budget)
    return Room(context=await measure_context(ask, profile, engine, budget, wiring), budget=budget)


def context_left(prompt_tokens: int, engine: EngineRef) -> int | None:
    """Tokens left beside a prompt; None where the engine does not tell its context length. Raises BadAsk at none."""
    context = engine.facts.context_length
    if context is None:
        return None
    if prompt_tokens >= context:
        # In words by which harnesses tell how much they must leave out.
        message = f"{prompt_tokens} tokens > {context} maximum: the conversation fills the model's context length"
        raise BadAsk(message, code="context_length_exceeded", param="messages")
    return context - prompt_tokens


async def measure_context(
    ask: Ask, profile: Profile, engine: EngineRef, budget: int | None, wiring: Wiring
) -> int | None:
    """Tokens left in the context; the engine's tokenizer is asked only where the limits could meet, else None."""
    bounds = (asked_max_tokens(ask.chat), profile.max_tokens_cap, budget)
    limits = [limit for limit in bounds if limit is not None]
    context = engine.facts.context_length
    if not limits or context is None or min(limits) + most_prompt_tokens(ask) <= context:
        return None
    if (ids := prompt_ids(ask)) is not None:
        return context_left(len(ids), engine)
    request = rendering(ask, engine)
    try:
        answer = await wiring.upstream.question(engine.url, request.path, request.body, api_key=engine.api_key)
    except EngineFault as fault:
        # The call itself will meet the same fault, and be recorded with it.
        if fault.code == "engine_unreachable":
            wiring.pool.suspect(engine.name, fault.in_full)
        return None
    count = answer.body.get("count") if answer.status == 200 and isinstance(answer.body, dict) else None
    return context_left(count, engine) if isinstance(count, int) else None


def rendering(ask: Ask, engine: EngineRef) -> EngineRequest:
    """The question how many tokens a prompt takes; the answer's `count` tells."""
    if ask.api == "completions":
        return measured_text(ask, engine)
    dialect = DIALECTS[engine.facts.kind]
    return dialect.render(ask, engine, engine_messages(ask, dialect))


async def measure_budget(ask: Ask, wiring: Wiring) -> int | None:
    """Tokens that each choice may still generate under the rollout's budget; None where there is none.

    Calls of the rollout that are in flight at the same time do not count yet, so they may overshoot together.
    """
    rollout, limits = ask.identity.rollout, wiring.settings.limits
    budget = rollout.token_budget if rollout.token_budget is not None else limits.tokens_per_rollout
    if budget is None:
        return None
    counts = await wiring.store.counts(rollout.rollout_id)
    return max(0, (budget - counts.completion_tokens) // ask.choices)


def most_prompt_tokens(ask: Ask) -> int:
    """A bound: no tokenizer makes more tokens than there are bytes."""
    shown = {name: ask.chat.get(name) for name in ("tools", *TEMPLATE_FIELDS)}
    return len(json.dumps([ask.messages, shown])) + TEMPLATE_ALLOWANCE
