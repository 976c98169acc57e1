"""The reply to a request that another process answers, for a repeat of it that came to this one.

Processes meet in the store alone: it is looked at until the calls have an outcome, which then is shown as a whole.
Their leases are the other process's to keep; where that dies they lapse, and the outcome is `proxy_died`.
"""

import asyncio
from collections.abc import Sequence

import structlog

from proxy.errors import StoreDown
from proxy.model import JsonObject, RolloutId
from proxy.running import Running
from proxy.wiring import Wiring

LOOK_EVERY_S = 0.25

log = structlog.get_logger()


async def settled_elsewhere(running: Running, rollout_id: RolloutId, wiring: Wiring) -> Sequence[JsonObject] | None:
    """The calls of a request, as documents, once all have an outcome; none where they were deleted meanwhile.

    None where the time of a reply was over before that, or nobody waits for it any more.
    """
    async with running.time_limit():
        while True:
            try:
                calls = await wiring.store.request_calls(rollout_id, running.head.request_id)
                if all(call["state"] != "reserved" for call in calls):
                    return calls
            except StoreDown as error:
                log.warning("a reply of another process could not be looked at", reason=error.message)
            await asyncio.sleep(LOOK_EVERY_S)
    return None
