"""THE STORY: one model turn, from the harness's question to the recorded answer.

`serve_turn` decides everything and writes it down in a Plan; `relay` asks the engine, lets the reply grow, and shows
its end only once the record is durable. Both work the same for streamed and whole replies: a whole one is a stream of
one event.
"""

import asyncio
import json

import structlog

from proxy import clock, metrics
from proxy.engine.dialect import Dialect
from proxy.engine.fit import judge_replay
from proxy.engine.fold import ReplyFold
from proxy.engine.pool import DIALECTS
from proxy.errors import BadAsk, EngineFault, ProxyError, RolloutClosed, StoreDown
from proxy.model import (
    Ask,
    Call,
    CallId,
    Completion,
    EngineRef,
    Failure,
    Outcome,
    Plan,
    Profile,
    Reservation,
    Sampling,
    Seed,
    Segment,
    Timing,
)
from proxy.request.parent import resolve_parent, supply_prefix
from proxy.request.sampling import PinRules, asked_max_tokens, pin_sampling
from proxy.request.seed import SeedRule, read_client_seed
from proxy.running import Running
from proxy.wiring import Wiring

# Bytes of a request that its prompt's tokens never exceed, beyond the conversation itself: the template's own words.
TEMPLATE_ALLOWANCE = 4096
# Pauses between attempts to commit a record.
FIRST_COMMIT_PAUSE_S = 0.1
LONGEST_COMMIT_PAUSE_S = 2.0

log = structlog.get_logger()


async def serve_turn(ask: Ask, wiring: Wiring) -> Running:
    """Decide one call and set it going; what comes back can be read while it grows.

    Raises ProxyError where the call may not happen; then nothing was recorded and no engine was asked.
    """
    rollout = ask.identity.rollout
    with wiring.turns.admission(rollout.rollout_id) as admission:
        profile = wiring.profiles.of_rollout(rollout)
        engine = wiring.pool.choose(rollout.rollout_id, profile)
        dialect = DIALECTS[engine.facts.kind]
        room = await measure_room(ask, profile, engine, wiring)
        sampling = pin_sampling(ask.body, profile, pin_rules(dialect, wiring), room)
        plan = await reserve(ask, profile, engine, sampling, wiring)
        running = Running(
            plan, call_s=wiring.settings.timeouts.call_s, orphan_grace_s=wiring.settings.timeouts.orphan_grace_s
        )
        wiring.turns.start(running, relay(running, dialect, wiring), admission)
        return running


async def measure_room(ask: Ask, profile: Profile, engine: EngineRef, wiring: Wiring) -> int | None:
    """Tokens left for the reply, asked of the engine's tokenizer only where the limits could meet.

    Raises BadAsk where the prompt alone fills the context.
    """
    limits = [limit for limit in (asked_max_tokens(ask.body), profile.max_tokens_cap) if limit is not None]
    context = engine.facts.context_length
    if not limits or context is None or min(limits) + most_prompt_tokens(ask) <= context:
        return None
    tools = ask.body.get("tools") or []
    request = DIALECTS[engine.facts.kind].measure(ask, engine, tools)
    answer = await wiring.upstream.question(engine.url, request.path, request.body, api_key=engine.api_key)
    count = answer.body.get("count") if answer.status == 200 and isinstance(answer.body, dict) else None
    if not isinstance(count, int):
        return None
    if count >= context:
        message = f"the conversation takes {count} tokens and the model's context length is {context}"
        raise BadAsk(message, code="context_length_exceeded", param="messages")
    return context - count


def most_prompt_tokens(ask: Ask) -> int:
    """A bound: no tokenizer makes more tokens than there are bytes."""
    return len(json.dumps([ask.messages, ask.body.get("tools")])) + TEMPLATE_ALLOWANCE


def pin_rules(dialect: Dialect, wiring: Wiring) -> PinRules:
    """The settings that bear on a client's fields."""
    settings = wiring.settings
    return PinRules(
        strict=settings.pin_mode == "strict",
        constrained=settings.constrained_fields,
        refuse_unknown=settings.unknown_fields == "refuse",
        shaping_understood=dialect.shaping,
    )


async def reserve(ask: Ask, profile: Profile, engine: EngineRef, sampling: Sampling, wiring: Wiring) -> Plan:
    """Write the row that accounts for the call whatever happens, and with it settle its seed."""
    identity, now, choice = ask.identity, clock.now(), 0
    client_seed = read_client_seed(ask.body.get("seed"))
    rule = SeedRule(
        wiring.settings.client_seed, wiring.run_seed, identity, ask.conversation.context, choice, client_seed
    )
    reservation = Reservation(
        call_id=CallId(clock.new_id("ca")),
        request_id=clock.new_id("rq"),
        rollout_id=identity.rollout_id,
        context=ask.conversation.context,
        choice=choice,
        history=ask.conversation.history[-1],
        api=ask.api,
        stream=ask.stream,
        asked_at=now,
        lease_until=now + wiring.settings.timeouts.lease_s,
        owner=wiring.owner,
        mint=rule.mint,
        exclusive_seed=rule.must_be_exclusive and not profile.is_greedy,
    )
    reserved = await wiring.store.reserve(reservation)
    parent = resolve_parent(ask.conversation)
    return Plan(
        call_id=reservation.call_id,
        request_id=reservation.request_id,
        ask=ask,
        profile=profile,
        parent=parent,
        sampling=sampling,
        seed=Seed(reserved.seed, rule.source, reserved.occurrence, choice, client_seed),
        prefix=supply_prefix(parent),
        engine=engine,
        started_at=now,
    )


async def relay(running: Running, dialect: Dialect, wiring: Wiring) -> None:
    """Ask the engine, let the reply grow, record it, and only then show its end.

    Runs in a task of its own: a client that leaves does not cancel it.
    """
    plan, started = running.plan, clock.ticks()
    fold = ReplyFold(plan, dialect.read_tokens, wiring.settings.reasoning_field)
    metrics.in_flight(1)
    try:
        outcome, first_event_s = await exchange(running, fold, dialect, wiring)
        timing = Timing(plan.started_at, first_event_s, clock.ticks() - started)
        call = Call(plan, outcome, segments_of(plan, outcome), timing, judge_replay(plan, outcome))
        await commit(call, wiring)
    except ProxyError as error:
        running.fail(error)
    except Exception:
        log.exception("a turn broke", call_id=plan.call_id)
        running.fail(ProxyError("the proxy failed in this call; its log says how"))
        raise
    else:
        show_end(running, outcome)
    finally:
        metrics.in_flight(-1)


async def exchange(running: Running, fold: ReplyFold, dialect: Dialect, wiring: Wiring) -> tuple[Outcome, float | None]:
    """One exchange with the engine, whatever comes of it, and the seconds to its first event."""
    plan, started, first_event_s = running.plan, clock.ticks(), None
    try:
        async with (
            running.time_limit(),
            wiring.upstream.ask(plan.engine, dialect.encode(plan), plan.call_id) as events,
        ):
            async for event in events:
                first_event_s = first_event_s or clock.ticks() - started
                fold.feed(event)
                (running.hold if fold.ended else running.publish)(event)
        return judge(fold.finish(), may_mask=wiring.settings.missing_ids == "mask"), first_event_s
    except EngineFault as fault:
        if fault.code == "engine_unreachable":
            wiring.pool.suspect(plan.engine.name, fault.message)
        return failure_of(fault, fold.partial()), first_event_s
    except TimeoutError:
        return cut_short(running, fold.partial()), first_event_s


def judge(completion: Completion, *, may_mask: bool) -> Outcome:
    """A reply that ended is a completion only if it ended by itself and its tokens are whole."""
    if completion.finish_reason == "abort":
        message = "the engine aborted the reply before it was complete"
        return Failure("engine_aborted", 503, message, retry_after_s=1, partial=completion)
    if completion.finish_reason == "error":
        return Failure("engine_error", 502, "the engine ended the reply with an error", partial=completion)
    if completion.captured or may_mask:
        return completion
    message = f"the engine's reply cannot be recorded token for token: {', '.join(completion.capture_gaps)}"
    return Failure("missing_ids", 502, message, may_retry=False, partial=completion)


def failure_of(fault: EngineFault, partial: Completion) -> Failure:
    """A fault of the exchange as data."""
    return Failure(
        kind=fault.code,
        status=fault.status,
        message=fault.message,
        param=fault.param,
        may_retry=fault.may_retry,
        retry_after_s=fault.retry_after_s,
        partial=partial,
    )


def cut_short(running: Running, partial: Completion) -> Failure:
    """Why an exchange was cut by its time limit."""
    if running.is_stopped:
        message = "the proxy was stopped before the reply ended"
        return Failure("proxy_stopped", 503, message, retry_after_s=2, partial=partial)
    if running.is_abandoned:
        return Failure("client_gone", 499, "the client left before the reply ended", partial=partial)
    return Failure("call_timeout", 504, "the call took longer than timeouts.call_s", partial=partial)


def segments_of(plan: Plan, outcome: Outcome) -> tuple[Segment, ...]:
    """Generated tokens by seed, engine and weight version: one segment, or one per version the engine reports."""
    completion = outcome.partial if isinstance(outcome, Failure) else outcome
    if completion is None or not completion.tokens.completion_ids:
        return ()
    spans = completion.weight_versions or ({"start": 0, "end": len(completion.tokens.completion_ids), "version": None},)
    return tuple(
        Segment(int(span["start"]), int(span["end"]), plan.seed.value, span.get("version"), plan.engine.name)
        for span in spans
    )


async def commit(call: Call, wiring: Wiring) -> None:
    """Make the record durable; a store that fails is tried again for commit_wait_s. Raises StoreDown, RolloutClosed."""
    started, pause_s = clock.ticks(), FIRST_COMMIT_PAUSE_S
    while True:
        try:
            await wiring.store.record(call)
            break
        except StoreDown as error:
            if clock.ticks() - started + pause_s > wiring.settings.timeouts.commit_wait_s:
                log.error("a record was given up", call_id=call.plan.call_id, reason=error.message)  # noqa: TRY400
                raise
            log.warning("a record waits for the store", call_id=call.plan.call_id, reason=error.message)
        except RolloutClosed:
            metrics.late_result()
            raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_COMMIT_PAUSE_S)
    metrics.commit(clock.ticks() - started)
    count(call)


def count(call: Call) -> None:
    """Put a recorded call into the metrics."""
    outcome = call.outcome
    tokens = None if isinstance(outcome, Failure) else outcome.tokens
    metrics.call_ended(
        outcome.kind if isinstance(outcome, Failure) else "completed",
        len(tokens.prompt_ids) if tokens else 0,
        len(tokens.completion_ids) if tokens else 0,
        call.timing.ended_s,
    )
    if call.timing.first_event_s is not None:
        metrics.first_event(call.timing.first_event_s)


def show_end(running: Running, outcome: Outcome) -> None:
    """Release the held events, or tell the readers what went wrong."""
    if isinstance(outcome, Completion):
        running.end(outcome)
    else:
        running.fail(
            EngineFault(
                outcome.kind,
                outcome.status,
                outcome.message,
                param=outcome.param,
                may_retry=outcome.may_retry,
                retry_after_s=outcome.retry_after_s,
            )
        )
