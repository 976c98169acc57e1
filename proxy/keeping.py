"""Calls are put on record durably and counted; a loss that a client was told of is written down as soon as may be."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import structlog

from proxy import clock, metrics
from proxy.errors import RolloutClosed, StoreDown, TakenOver
from proxy.model import Call, Failure, Outcome, Replayable
from proxy.wiring import Wiring

# Pauses between attempts to commit a record.
FIRST_COMMIT_PAUSE_S = 0.1
LONGEST_COMMIT_PAUSE_S = 2.0

log = structlog.get_logger()


async def commit(calls: Sequence[Call], wiring: Wiring) -> None:
    """Make the records durable together; a store that fails is tried again for commit_wait_s.

    Raises StoreDown, RolloutClosed where the rollout was closed meanwhile, TakenOver where another try has the call.
    """
    started, pause_s, request_id = clock.ticks(), FIRST_COMMIT_PAUSE_S, calls[0].plan.request_id
    while True:
        try:
            flags = await wiring.store.record(calls)
            break
        except StoreDown as error:
            if clock.ticks() - started + pause_s > wiring.settings.timeouts.commit_wait_s:
                log.error("a record was given up", request_id=request_id, reason=error.message)  # noqa: TRY400
                raise
            log.warning("a record waits for the store", request_id=request_id, reason=error.message)
        except RolloutClosed:
            metrics.late_result()
            raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_COMMIT_PAUSE_S)
    metrics.commit(clock.ticks() - started)
    for call in calls:
        count(call)
        if isinstance(call.outcome, Failure):
            failure = call.outcome
            log.info(
                "call failed", call_id=call.plan.call_id, kind=failure.kind, reason=failure.detail or failure.message
            )
    for flag in flags:
        metrics.group_collapsed()
        log.warning("group collapsed: two samples drew the same first reply", group=group_of(calls), **flag.detail)


def group_of(calls: Sequence[Call]) -> str:
    return calls[0].plan.ask.identity.rollout.group


def count(call: Call) -> None:
    """Put a recorded call into the metrics."""
    outcome = call.outcome
    tokens = None if isinstance(outcome, Failure) else outcome.tokens
    metrics.call_ended(
        outcome.kind if isinstance(outcome, Failure) else metrics.COMPLETED,
        len(tokens.prompt_ids) if tokens else 0,
        len(tokens.completion_ids) if tokens else 0,
        call.timing.ended_s,
    )
    prefix = call.plan.prefix
    metrics.prefix_ended(prefix.outcome, prefix.reason)
    if call.timing.first_event_s is not None:
        metrics.first_event(call.timing.first_event_s)


async def record_loss(calls: Sequence[Call], error: StoreDown, wiring: Wiring) -> None:
    """The client was told that its reply is not on record: write that down as soon as the store can.

    Until then the leases are kept; after it a retry finds the draw failed, and gets the same one again.
    """
    lost = [
        replace(call, outcome=loss_of(call.outcome, error), replayable=Replayable("no", ("store_unavailable",)))
        for call in calls
    ]
    pause_s = FIRST_COMMIT_PAUSE_S
    with contextlib.suppress(RolloutClosed, TakenOver):
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_COMMIT_PAUSE_S)
            with contextlib.suppress(StoreDown):
                await wiring.store.record(lost)
                return


def loss_of(outcome: Outcome, error: StoreDown) -> Failure:
    """A reply that came and could not be kept; one that had failed stays what it was."""
    if isinstance(outcome, Failure):
        return outcome
    return Failure("store_unavailable", error.status, error.message, retry_after_s=error.retry_after_s, partial=outcome)
