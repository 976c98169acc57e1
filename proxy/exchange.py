"""One exchange with an engine for each choice of a request, and what comes of it, as data: completion or failure."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from proxy import clock
from proxy.engine.dialect import Dialect
from proxy.engine.fold import ReplyFold
from proxy.errors import EngineFault
from proxy.model import Completion, Failure, Outcome, Plan, Segment
from proxy.running import Running
from proxy.wiring import Wiring

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The outcome of one choice."""

    outcome: Outcome
    first_event_s: float | None
    is_disturbed: bool = False
    """Whether it shared a batch with a call of another sampling class."""


async def exchange_all(running: Running, dialect: Dialect, wiring: Wiring) -> tuple[Exchanged, ...]:
    """Ask for every choice at once. If one fails the rest are cut, and all fail: half a set is no answer."""
    asking = [asyncio.ensure_future(exchange(running, plan, dialect, wiring)) for plan in running.head.plans]
    async with running.time_limit():
        pending = set(asking)
        while pending and not _has_failure(asking):
            _done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    for one in asking:
        one.cancel()
    exchanged = tuple(await asyncio.gather(*asking))
    return exchanged if not _failures(exchanged) else tuple(_fail_with_siblings(one) for one in exchanged)


async def exchange(running: Running, plan: Plan, dialect: Dialect, wiring: Wiring) -> Exchanged:
    """Ask the engine once and let the reply grow; nothing that goes wrong is raised."""
    fold = ReplyFold(plan, dialect.read_tokens, wiring.settings.reasoning_field)
    started, first_event_s, choice = clock.ticks(), None, plan.seed.choice
    is_disturbed = False
    try:
        async with wiring.upstream.ask(plan.engine, dialect.encode(plan), plan.call_id) as events:
            async for event in events:
                first_event_s = first_event_s or clock.ticks() - started
                fold.feed(event)
                (running.hold if fold.ended else running.publish)(choice, event)
            is_disturbed = events.is_disturbed
        outcome = judge(fold.finish(), may_mask=wiring.settings.missing_ids == "mask")
    except EngineFault as fault:
        if fault.code == "engine_unreachable":
            wiring.pool.suspect(plan.engine.name, fault.detail or fault.message)
        elif fault.code == "engine_cut":
            wiring.pool.look_soon()
        outcome = failure_of(fault, fold.partial())
    except asyncio.CancelledError:
        # Only exchange_all cancels this task, and it wants to know how far the reply came.
        outcome = cut_short(running, fold.partial())
    except Exception:
        log.exception("an exchange broke", call_id=plan.call_id)
        outcome = Failure("internal_error", 500, "the proxy failed in this call; its log says how", may_retry=False)
    return Exchanged(outcome, first_event_s, is_disturbed)


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
        engine_status=fault.engine_status,
        detail=fault.detail,
        may_retry=fault.may_retry,
        retry_after_s=fault.retry_after_s,
        partial=partial,
    )


def cut_short(running: Running, partial: Completion) -> Failure:
    """Why this exchange was cut from outside."""
    if running.is_stopped:
        message = "the proxy was stopped before the reply ended"
        return Failure("proxy_stopped", 503, message, retry_after_s=2, partial=partial)
    if not running.is_out_of_time:
        return Failure("sibling_failed", 502, "another choice of the same request failed", partial=partial)
    if running.is_abandoned:
        # Told only to one who came back in the moment between this cut and its record: the next try is served.
        message = "every client had left before the reply ended"
        return Failure("client_gone", 503, message, retry_after_s=1, partial=partial)
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


def first_failure(outcomes: Sequence[Outcome]) -> Failure | None:
    """The failure that the caller is told: the first that is not merely a sibling's."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    own = itertools.chain((one for one in failures if one.kind != "sibling_failed"), failures)
    return next(own, None)


def _has_failure(asking: Sequence[asyncio.Future[Exchanged]]) -> bool:
    return any(one.done() and isinstance(one.result().outcome, Failure) for one in asking)


def _failures(exchanged: Sequence[Exchanged]) -> bool:
    return any(isinstance(one.outcome, Failure) for one in exchanged)


def _fail_with_siblings(one: Exchanged) -> Exchanged:
    """A choice that ended by itself, in a set of which another failed."""
    if isinstance(one.outcome, Failure):
        return one
    message = "another choice of the same request failed"
    return replace(one, outcome=Failure("sibling_failed", 502, message, partial=one.outcome))
