"""Replay of a rollout: its recorded calls, some at once, verdicts as they come.

Calls of one sampling class come together, so that an engine's gate need not turn for each.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from proxy import metrics
from proxy.engine.gate import class_of
from proxy.model import JsonObject, Rollout
from proxy.replay.again import replay_call
from proxy.replay.choose import open_engines
from proxy.replay.verdict import Verdict
from proxy.wiring import Wiring

CALLS_A_PAGE = 100
Result = TypeVar("Result")


async def replay_rollout(
    rollout: Rollout, wiring: Wiring, *, only: Collection[str] = (), tolerance: float | None = None
) -> AsyncIterator[tuple[JsonObject, Verdict]]:
    """Each call with its verdict; `only` narrows to these call ids. Leaving the loop stops what still runs."""
    await look_anew(wiring)
    allowed = wiring.settings.replay_tolerance if tolerance is None else tolerance
    async for page in recorded_calls(rollout, wiring, only):
        work = [_with(call, replay_counted(call, rollout, wiring, allowed)) for call in page]
        async for call, verdict in as_they_come(work):
            yield call, verdict


async def look_anew(wiring: Wiring) -> None:
    """See which engines there are, and which weights they have."""
    await wiring.pool.look()
    await asyncio.gather(*(wiring.weights.look(engine) for engine in open_engines(wiring.pool)))


async def replay_counted(call: JsonObject, rollout: Rollout, wiring: Wiring, tolerance: float) -> Verdict:
    """One call's verdict, in the metrics as well."""
    verdict = await replay_call(call, rollout, wiring, tolerance)
    metrics.replayed(verdict.word)
    return verdict


async def recorded_calls(
    rollout: Rollout, wiring: Wiring, only: Collection[str]
) -> AsyncIterator[Sequence[JsonObject]]:
    """A rollout's calls page by page, those of one sampling class together."""
    cursor: str | None = None
    while True:
        page = await wiring.store.calls(rollout.rollout_id, cursor, CALLS_A_PAGE)
        yield sorted((call for call in page.items if not only or call["call_id"] in only), key=_class)
        if (cursor := page.cursor) is None:
            return


async def as_they_come(work: Sequence[Coroutine[Any, Any, Result]]) -> AsyncIterator[Result]:
    """Results in the order of their ends; what is left is cancelled when the loop is left."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        for ended in asyncio.as_completed(tasks):
            yield await ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _with(call: JsonObject, judging: Coroutine[Any, Any, Verdict]) -> tuple[JsonObject, Verdict]:
    return call, await judging


def _class(call: JsonObject) -> str:
    return class_of(call["sampling"]["effective"]) if call["sampling"] else ""
