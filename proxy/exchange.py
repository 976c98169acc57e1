"""One exchange with an engine for each choice of a request, and what comes of it, as data: completion or failure."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from proxy.asking import Asking
from proxy.engine.dialect import Dialect
from proxy.engine.pool import Pool
from proxy.errors import EngineFault, StoreDown
from proxy.model import Completion, Failure, Outcome, Plan, Segment
from proxy.running import Running
from proxy.wiring import Wiring

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The outcome of one choice, and the plan that came to it."""

    plan: Plan
    outcome: Outcome
    first_event_s: float | None
    segments: tuple[Segment, ...] = ()
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
    """Ask the planned engine, and where no byte of it could be had another that is like it: the same call and seed."""
    exchanged = await exchange_once(running, plan, dialect, wiring)
    while other := plan_anew(exchanged, wiring.pool):
        log.warning("a call goes to another engine", call_id=plan.call_id, engine=other.engine.name)
        exchanged = await exchange_once(running, other, dialect, wiring)
    return exchanged


def plan_anew(exchanged: Exchanged, pool: Pool) -> Plan | None:
    """The plan for another engine, where this one's was never reached and there is one with the same fingerprint."""
    outcome, plan = exchanged.outcome, exchanged.plan
    is_lost = isinstance(outcome, Failure) and outcome.kind == "engine_unreachable"
    if not is_lost or exchanged.first_event_s is not None:
        return None
    unreached = (*plan.unreached, plan.engine)
    engine = pool.choose_instead(plan.ask.identity.rollout_id, plan.profile, unreached)
    return replace(plan, engine=engine, unreached=unreached) if engine else None


async def exchange_once(running: Running, plan: Plan, dialect: Dialect, wiring: Wiring) -> Exchanged:
    """Ask the engine until the reply really ends, and let it grow; nothing that goes wrong is raised."""
    asking = Asking(running, plan, dialect, wiring)
    try:
        outcome = await asking.outcome()
        if isinstance(outcome, Completion):
            patience_s = wiring.settings.timeouts.commit_wait_s
            asking.drawn_by(await wiring.pool.confirm(plan.engine, asking.connections, patience_s))
    except EngineFault as fault:
        if fault.code == "engine_unreachable":
            wiring.pool.suspect(plan.engine.name, fault.in_full)
        elif fault.code == "engine_cut":
            wiring.pool.look_soon()
        outcome = failure_of(fault, asking.partial())
    except StoreDown as error:
        outcome = store_away(error, asking.partial())
    except asyncio.CancelledError:
        # Only exchange_all cancels this task, and it wants to know how far the reply came.
        outcome = cut_short(running, asking.partial())
    except Exception:
        log.exception("an exchange broke", call_id=plan.call_id)
        outcome = Failure("internal_error", 500, "the proxy failed in this call; its log says how", may_retry=False)
    return Exchanged(plan, outcome, asking.first_event_s, asking.segments(), is_disturbed=asking.is_disturbed)


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


def store_away(error: StoreDown, partial: Completion) -> Failure:
    """Nobody can tell which weights draw, or drew, the reply."""
    return Failure("store_unavailable", error.status, error.message, retry_after_s=error.retry_after_s, partial=partial)


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
