"""A share of the recorded calls, replayed and rescored beside the running ones: what the metrics watch all the time.

Which calls is decided by a hash of their ids, so that a rate means the same everywhere; they wait in a short queue, and
where that is full a call is left out rather than kept waiting.
"""

import hashlib
from collections.abc import Sequence

import structlog

from proxy.errors import StoreDown
from proxy.model import Call, CallId, Failure, JsonObject, RolloutId
from proxy.replay.rescore import rescore_call
from proxy.replay.story import replay_counted
from proxy.wiring import Wiring

REPLAY, RESCORE = "replay", "rescore"

log = structlog.get_logger()


def offer(calls: Sequence[Call], wiring: Wiring) -> None:
    """Put those of the calls that the rates choose into the queue."""
    settings = wiring.settings
    for call in calls:
        if wiring.cassette or isinstance(call.outcome, Failure):
            continue
        for purpose, rate in ((REPLAY, settings.replay_sample_rate), (RESCORE, settings.rescore_sample_rate)):
            if is_chosen(call.plan.call_id, purpose, rate) and not wiring.samples.full():
                wiring.samples.put_nowait((purpose, call.plan.call_id))


def is_chosen(call_id: str, purpose: str, rate: float) -> bool:
    """Whether a call is among the share; the two purposes choose apart from each other."""
    drawn = int.from_bytes(hashlib.sha256(f"{purpose}\n{call_id}".encode()).digest()[:8], "big")
    return drawn < rate * 2**64


async def watch_samples(wiring: Wiring) -> None:
    """Take call after call out of the queue, for as long as the proxy runs."""
    while True:
        purpose, call_id = await wiring.samples.get()
        try:
            await _examine(purpose, call_id, wiring)
        except StoreDown as error:
            log.warning("a sampled call could not be read", call_id=call_id, reason=error.message)


async def _examine(purpose: str, call_id: CallId, wiring: Wiring) -> None:
    call = await wiring.store.call(call_id)
    if call is None:
        return
    if purpose == RESCORE:
        await rescore_call(call, wiring)
    else:
        await _replay(call, wiring)


async def _replay(call: JsonObject, wiring: Wiring) -> None:
    rollout = await wiring.store.rollout(RolloutId(call["rollout_id"]))
    if rollout is None:
        return
    verdict = await replay_counted(call, rollout, wiring, wiring.settings.replay_tolerance)
    if verdict.word == "diverged":
        log.warning("a recorded call does not replay", call_id=call["call_id"], rollout_id=rollout.rollout_id)
