"""One recorded call drawn again, segment by segment, and what that comes to. Whatever goes wrong is a verdict too."""

import math
from dataclasses import dataclass, replace

from proxy import clock
from proxy.engine.fold import ReplyFold
from proxy.engine.gate import class_of
from proxy.engine.parts import WEIGHTS_CHANGED
from proxy.engine.pool import DIALECTS
from proxy.errors import EngineFault
from proxy.model import CallId, Completion, EngineRef, JsonObject, Plan, Rollout, Weights
from proxy.noise import column_hash, gumbel, seeded_state
from proxy.replay.choose import Unfit, choose, gone, open_engines
from proxy.replay.door import confirmed, with_engines
from proxy.replay.remake import Take, barriers, remake, takes
from proxy.replay.verdict import Difference, Divergence, Likeness, Sampled, Verdict, compare
from proxy.wiring import Wiring


@dataclass(frozen=True, slots=True)
class Again:
    """A call, the engine that it is asked of, and what logprobs may differ by."""

    call: JsonObject
    rollout: Rollout
    engine: EngineRef
    tolerance: float


async def replay_call(call: JsonObject, rollout: Rollout, wiring: Wiring, tolerance: float) -> Verdict:
    """Draw one call again where that can be done; its turn at the engine is waited for."""
    call_id = CallId(call["call_id"])
    if reasons := barriers(call):
        return Verdict(call_id, "not_replayable", reasons)
    try:
        async with wiring.aside, with_engines(wiring):
            return await _replayed(call, rollout, wiring, tolerance)
    except EngineFault as fault:
        return Verdict(call_id, "failed", (fault.code, fault.message))


async def _replayed(call: JsonObject, rollout: Rollout, wiring: Wiring, tolerance: float) -> Verdict:
    """The same, with the engines."""
    call_id, started = CallId(call["call_id"]), clock.ticks()
    chosen = choose(
        call, takes(call, None), open_engines(wiring.pool), lambda engine: wiring.weights.of(engine).version
    )
    if isinstance(chosen, Unfit):
        return Verdict(call_id, "weights_gone" if chosen.weights_gone else "not_replayable", chosen.reasons)
    verdict = await _draw_again(Again(call, rollout, chosen, tolerance), wiring)
    return replace(verdict, engine=chosen.name, tolerance=tolerance, seconds=clock.ticks() - started)


async def _draw_again(again: Again, wiring: Wiring) -> Verdict:
    """Segment after segment, up to the first that does not come out the same."""
    call_id, difference = CallId(again.call["call_id"]), Difference()
    for take in takes(again.call, again.engine.facts.context_length):
        try:
            plan, drawn, before, asked = await draw(take, again, wiring)
        except EngineFault as fault:
            return Verdict(call_id, "failed", (fault.code, fault.message), difference)
        if reasons := _untrue(take, drawn):
            return Verdict(call_id, "failed", reasons, difference)
        likeness = compare(take.recorded, sampled(drawn), start=take.start, tolerance=again.tolerance)
        difference = difference.plus(likeness.difference)
        if likeness.divergence is None:
            continue
        after = await wiring.weights.look(asked)
        if reasons := _other_weights(take, drawn, after):
            return Verdict(call_id, "weights_gone", reasons, difference)
        if before.epoch != after.epoch:
            return Verdict(call_id, "failed", (WEIGHTS_CHANGED,), difference)
        return Verdict(call_id, "diverged", (), difference, _with_score(likeness, take, plan))
    return Verdict(call_id, "same", (), difference)


async def draw(take: Take, again: Again, wiring: Wiring) -> tuple[Plan, Completion, Weights, EngineRef]:
    """Ask the engine for one take: what it drew, its weights before, and the engine as it was seen behind it.

    Raises EngineFault.
    """
    plan = remake(again.call, take, again.rollout, again.engine)
    dialect = DIALECTS[again.engine.facts.kind]
    fold = ReplyFold(plan, dialect.read_tokens, wiring.settings.reasoning_field)
    before = await wiring.weights.look(plan.engine)
    request = wiring.weights.salted(plan.engine, dialect.encode(plan))
    async with wiring.upstream.ask(plan.engine, request, plan.call_id) as events:
        opened = wiring.upstream.connections.opened(plan.engine.url)
        async for event in events:
            fold.feed(event)
        disturbed = ("class_disturbed",) if events.is_disturbed else ()
    completion = fold.finish()
    asked = await confirmed(plan.engine, opened, wiring)
    return plan, replace(completion, capture_gaps=completion.capture_gaps + disturbed), before, asked


def sampled(drawn: Completion) -> tuple[Sampled, ...]:
    return tuple(map(Sampled, drawn.tokens.completion_ids, drawn.tokens.logprobs))


def _untrue(take: Take, drawn: Completion) -> tuple[str, ...]:
    """Why a reply says nothing of the record: it is not whole, or not on the prompt that was given."""
    if drawn.finish_reason in {"abort", "error"}:
        return (f"engine_{drawn.finish_reason}",)
    if drawn.capture_gaps:
        return drawn.capture_gaps
    return ("prompt_not_taken",) if drawn.tokens.prompt_ids != take.prompt_ids else ()


def _other_weights(take: Take, drawn: Completion, after: Weights) -> tuple[str, ...]:
    """The versions, where the weights are not, or cannot be known to be, the recorded ones after all."""
    told = [str(span["version"]) for span in drawn.weight_versions if span.get("version") is not None]
    now = told[-1] if told else after.version
    return () if now == take.weight_version else gone([take.weight_version], now)


def _with_score(likeness: Likeness, take: Take, plan: Plan) -> Divergence:
    """The divergence, with the gap of both scores where SGLang's noise tells it."""
    found = likeness.divergence
    assert found is not None  # noqa: S101  asked for where there is one
    is_sglang = plan.engine.facts.kind == "sglang" and plan.engine.facts.deterministic
    if not is_sglang or class_of(dict(plan.sampling.effective)) != "plain" or found.kind != "token":
        return found
    position = len(take.prompt_ids) - 1 + found.at - take.start
    return replace(found, score_gap=_score(found.recorded, take, position) - _score(found.drawn, take, position))


def _score(token: Sampled | None, take: Take, position: int) -> float:
    if token is None:
        return math.nan
    return token.logprob + gumbel(column_hash(seeded_state(take.seed, position), token.token_id))
