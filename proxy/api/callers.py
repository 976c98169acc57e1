"""Who may call: the rollout behind a request, by its name and its own key, while it is open."""

import contextlib

from fastapi import Request

from proxy import clock
from proxy.errors import Conflict, NotFound, RolloutClosed
from proxy.model import Identity, Rollout
from proxy.request.identify import Caller, authorise, idempotency_key, identify, lane_signals, retry_count
from proxy.settings import is_loopback
from proxy.wiring import Wiring

DEFAULT_RUN = "default"
# In the metadata of a rollout that its first call opened: any key is accepted for it.
AUTO_REGISTERED = "auto_registered"


async def known_caller(request: Request, wiring: Wiring) -> Identity:
    """The identity behind a request; raises WrongKey, NotFound or RolloutClosed."""
    caller = identify(
        request.headers, request.path_params.get("rollout_id"), trust_header=wiring.settings.trust_rollout_header
    )
    rollout = await wiring.store.rollout(caller.rollout_id)
    if rollout is None and wiring.cassette and (recorded := wiring.cassette.recorded(caller.rollout_id)):
        rollout = await _open(recorded, wiring)
    if rollout is None and wiring.settings.auto_register and _is_local(request):
        rollout = await _register(caller, wiring)
    if rollout is None:
        raise NotFound(f"no rollout is named {caller.rollout_id!r}", code="unknown_rollout")
    if not (rollout.metadata.get(AUTO_REGISTERED) and wiring.settings.auto_register):
        authorise(caller, wiring.keys)
    check_open(rollout)
    return Identity(
        rollout=rollout,
        lane_signals=lane_signals(request.headers),
        idempotency_key=idempotency_key(request.headers),
        retry_count=retry_count(request.headers),
    )


def check_open(rollout: Rollout) -> None:
    """Raise RolloutClosed unless calls are still welcome."""
    is_over = rollout.expires_at is not None and rollout.expires_at <= clock.now()
    state = "expired" if rollout.state == "open" and is_over else rollout.state
    if state != "open":
        raise RolloutClosed(f"rollout {rollout.rollout_id!r} is {state}", code=f"rollout_{state}")


async def _register(caller: Caller, wiring: Wiring) -> Rollout | None:
    """Create an unknown rollout with defaults for everything."""
    ttl_s, now = wiring.settings.limits.rollout_ttl_s, clock.now()
    fresh = Rollout(
        rollout_id=caller.rollout_id,
        run=DEFAULT_RUN,
        group=caller.rollout_id,
        sample=0,
        attempt=0,
        profile=wiring.settings.default_profile,
        sampling={},
        state="open",
        created_at=now,
        expires_at=now + ttl_s if ttl_s else None,
        metadata={AUTO_REGISTERED: True},
    )
    return await _open(fresh, wiring)


async def _open(fresh: Rollout, wiring: Wiring) -> Rollout | None:
    """Create a rollout at its first use; of several first uses at once one creates it."""
    with contextlib.suppress(Conflict):
        await wiring.store.create_rollouts([fresh])
    return await wiring.store.rollout(fresh.rollout_id)


def _is_local(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)
