"""THE STORY: one model turn, from the harness's question to the recorded answer.

`serve_turn` decides everything and writes it down in plans; `relay` asks the engine, lets the reply grow, and shows its
end only once the record is durable. Both work the same for streamed and whole replies: a whole one is a stream of one
event. A request for n choices is n plans that stand and fall together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from proxy import clock, metrics
from proxy.draw import Decision, Drawn, draw
from proxy.engine.dialect import Dialect
from proxy.engine.fit import judge_replay, tells_candidates
from proxy.engine.pool import DIALECTS
from proxy.errors import EngineFault, EngineUnready, ProxyError, RolloutClosed, StoreDown
from proxy.exchange import Exchanged, exchange_all, first_failure
from proxy.following import settled_elsewhere
from proxy.keeping import commit, record_loss
from proxy.length import decide_room
from proxy.model import Ask, Call, Claimed, Completion, Delivery, Failure, Outcome, Parent, Plan, RolloutId, Timing
from proxy.playback import play_all
from proxy.recorded import outcome_of, recorded_reply, whole_event
from proxy.replay.samples import offer
from proxy.request.parent import echoed_call_ids, echoes, resolve_parent
from proxy.request.prompt import refuse_foreign_ids
from proxy.request.sampling import PinRules, pin_sampling
from proxy.request.senses import refuse_unseen
from proxy.running import Admission, Head, Running
from proxy.supply import RENDER_FAILED, prove, supply_prefix
from proxy.wiring import Wiring

BUDGET_SPENT = Failure("token_budget_spent", 200, "the rollout has no tokens left to generate", may_retry=False)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Served:
    """A reply to read, and the delivery under which this client reads it."""

    running: Running
    delivery_id: str


async def serve_turn(ask: Ask, wiring: Wiring) -> Served:
    """Decide one request and set it going; what comes back can be read while it grows.

    Raises ProxyError where it may not happen; then nothing was recorded and no engine was asked.
    """
    rollout_id = ask.identity.rollout_id
    with wiring.refusals.noting(ask), wiring.turns.admission(rollout_id, ask.choices) as admission:
        wiring.pauses.check()
        decision = await decide(ask, wiring)
        drawn = await draw(decision, wiring)
        if drawn.plans:
            running = Running(head_of(drawn.plans), **wiring.settings.timeouts.of_a_reply())
            wiring.turns.start(running, relay(running, DIALECTS[decision.engine.facts.kind], wiring), admission)
        else:
            running = await claimed_reply(drawn, decision, admission, wiring)
        return Served(running, drawn.delivery_id)


async def decide(ask: Ask, wiring: Wiring) -> Decision:
    """The profile, the engine, every sampling value, and what the request goes on from."""
    rollout = ask.identity.rollout
    profile = wiring.profiles.of_rollout(rollout)
    engine = wiring.pool.choose(rollout.rollout_id, profile)
    refuse_foreign_ids(ask, engine.facts)
    refuse_unseen(ask, engine.facts)
    parent, engine_call_ids = await find_parent(ask, wiring)
    ask = replace(ask, engine_call_ids=engine_call_ids)
    prefix = await supply_prefix(ask, parent, profile, engine, wiring)
    if prefix.reason == RENDER_FAILED and (
        other := await wiring.pool.instead_of_lost(rollout.rollout_id, profile, engine)
    ):
        engine = other
        prefix = await supply_prefix(ask, parent, profile, engine, wiring)
    room = await decide_room(ask, profile, engine, prefix, wiring)
    settings = wiring.settings
    rules = PinRules(
        strict=settings.pin_mode == "strict",
        constrained=settings.constrained_fields,
        refuse_unknown=settings.unknown_fields == "refuse",
        shaping_understood=DIALECTS[engine.facts.kind].shaping,
    )
    sampling = pin_sampling(ask.chat, profile, rules, room, ask.left_out)
    audit_top = settings.audit_top_logprobs if tells_candidates(ask, engine.facts) else 0
    return Decision(ask, profile, engine, sampling, parent, prefix, audit_top)


async def find_parent(ask: Ask, wiring: Wiring) -> tuple[Parent, Mapping[str, str]]:
    """The earlier call that this request goes on from, and the engine's own ids of the tool calls that it names."""
    boundaries = [echo.history for echo in echoes(ask)]
    search = await wiring.store.find_parents(
        ask.identity.rollout_id, ask.conversation, boundaries, echoed_call_ids(ask)
    )
    return resolve_parent(ask, search), search.engine_call_ids


async def claimed_reply(drawn: Drawn, decision: Decision, admission: Admission, wiring: Wiring) -> Running:
    """The reply that a repeat claims; where there is none to read, its delivery ends before it began."""
    try:
        return await earlier_reply(drawn, decision, admission, wiring)
    except ProxyError:
        await wiring.deliveries.note(Delivery(drawn.delivery_id, clock.now(), "error_told", 0))
        raise


async def earlier_reply(drawn: Drawn, decision: Decision, admission: Admission, wiring: Wiring) -> Running:
    """The reply that a repeat claims: growing in this process, out of the store, or on its way there from another."""
    assert isinstance(drawn.answer, Claimed)  # noqa: S101  a draw without plans is a claim
    request_id, rollout_id = drawn.answer.request_id, decision.ask.identity.rollout_id
    running = wiring.turns.find(request_id)
    if running is None:
        calls = await wiring.store.request_calls(rollout_id, request_id)
        running = recorded_reply(calls)
    if running is not None:
        admission.give_back()
        return running
    head = Head(request_id, drawn.answer.call_ids, clock.now(), decision.engine.facts.model)
    running = Running(head, **wiring.settings.timeouts.of_a_reply())
    running.is_followed = True
    wiring.turns.start(running, follow(running, rollout_id, wiring), admission)
    return running


async def follow(running: Running, rollout_id: RolloutId, wiring: Wiring) -> None:
    """Show what comes of a request that another process answers."""
    try:
        calls = await settled_elsewhere(running, rollout_id, wiring)
    except Exception:
        running.fail(ProxyError("the proxy failed in this call; its log says how"))
        raise
    if calls is None:
        message = "another process is still answering the request that this one repeats"
        running.fail(EngineUnready(message, code="repeat_busy"))
    elif not calls:
        running.fail(RolloutClosed(f"rollout {rollout_id!r} was deleted before the reply had ended"))
    else:
        for call in calls:
            if call["state"] == "done":
                running.publish(call["seed"]["choice"], whole_event(call))
        show_end(running, [outcome_of(call) for call in calls])


def head_of(plans: tuple[Plan, ...]) -> Head:
    first = plans[0]
    call_ids = tuple(plan.call_id for plan in plans)
    return Head(first.request_id, call_ids, first.started_at, first.engine.facts.model, plans)


async def relay(running: Running, dialect: Dialect, wiring: Wiring) -> None:
    """Ask the engine, let the reply grow, record it, and only then show its end.

    Runs in a task of its own: a client that leaves does not cancel it.
    """
    plans, started = running.head.plans, clock.ticks()
    metrics.in_flight(len(plans))
    try:
        if plans[0].sampling.max_tokens == 0:
            exchanged = tuple(Exchanged(plan, BUDGET_SPENT, None) for plan in plans)
        else:
            play = wiring.cassette and play_all(running, wiring.cassette)
            exchanged = await (play or exchange_all(running, dialect, wiring))
        calls = [call_of(one, started) for one in exchanged]
        await commit(calls, wiring)
    except StoreDown as error:
        running.fail(error)
        await record_loss(calls, error, wiring)
    except ProxyError as error:
        running.fail(error)
    except Exception:
        log.exception("a turn broke", request_id=running.head.request_id)
        running.fail(ProxyError("the proxy failed in this call; its log says how"))
        raise
    else:
        show_end(running, [call.outcome for call in calls])
        offer(calls, wiring)
    finally:
        metrics.in_flight(-len(plans))


def call_of(exchanged: Exchanged, started: float) -> Call:
    """What the store keeps of one choice."""
    plan, outcome = exchanged.plan, exchanged.outcome
    timing = Timing(plan.started_at, exchanged.first_event_s, clock.ticks() - started)
    plan = replace(plan, prefix=prove(plan.prefix, outcome))
    replayable = judge_replay(plan, outcome, exchanged.segments, is_disturbed=exchanged.is_disturbed)
    return Call(plan, outcome, exchanged.segments, timing, replayable)


def show_end(running: Running, outcomes: Sequence[Outcome]) -> None:
    """Release the held events, or tell the readers what went wrong."""
    failure = first_failure(outcomes)
    if failure is None:
        running.end(tuple(outcome for outcome in outcomes if isinstance(outcome, Completion)))
    elif failure.kind == BUDGET_SPENT.kind:
        running.end_empty("length")
    else:
        running.fail(
            EngineFault(
                failure.kind,
                failure.status,
                failure.message,
                param=failure.param,
                may_retry=failure.may_retry,
                retry_after_s=failure.retry_after_s,
            )
        )
