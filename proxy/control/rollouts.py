"""One rollout: opened, judged, finished, deleted."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from proxy.clock import now
from proxy.control.auth import ADMIN
from proxy.control.bodies import RolloutBody, checked_outcome
from proxy.control.creating import Place, create, grant, minted_id
from proxy.control.edge import ControlRoute, Wired, body_of, json_object
from proxy.control.reads import known_rollout, present_rollout, rollout_document, unknown_call, unknown_rollout
from proxy.errors import RolloutClosed
from proxy.model import CallId, JsonObject, RolloutId
from proxy.request.identify import check_rollout_id

router = APIRouter(route_class=ControlRoute, dependencies=[ADMIN])

Outcome = Annotated[JsonObject, Depends(json_object)]


@router.post("/rollouts", status_code=201)
async def open_rollout(
    request: Request, wiring: Wired, body: Annotated[RolloutBody, Depends(body_of(RolloutBody))]
) -> JsonObject:
    """Open a rollout and tell its harness's address and key."""
    rollout_id = minted_id() if body.rollout_id is None else check_rollout_id(body.rollout_id)
    place = Place(rollout_id, body.group or rollout_id, body.sample)
    (rollout,), _profile, warnings = await create(request, wiring, body, [place])
    return {**grant(request, wiring, rollout), "warnings": warnings}


@router.put("/rollouts/{rollout_id}/outcome")
async def set_outcome(rollout_id: str, wiring: Wired, value: Outcome) -> JsonObject:
    """Replace what came of a rollout; also after it was finished."""
    outcome = checked_outcome(value)
    await present_rollout(wiring, rollout_id)
    rollout = await wiring.store.set_outcome(RolloutId(rollout_id), outcome)
    if rollout is None:
        raise unknown_rollout(rollout_id)
    return rollout_document(rollout)


@router.put("/calls/{call_id}/outcome")
async def set_call_outcome(call_id: str, wiring: Wired, value: Outcome) -> JsonObject:
    """Replace what came of one call."""
    outcome = checked_outcome(value)
    if not await wiring.store.set_call_outcome(CallId(call_id), outcome):
        raise unknown_call(call_id)
    return {"call_id": call_id, "outcome": outcome}


@router.post("/rollouts/{rollout_id}/finish")
async def finish_rollout(rollout_id: str, wiring: Wired) -> JsonObject:
    """Let no further call in; one that is finished or has expired stays as it is."""
    await present_rollout(wiring, rollout_id)
    rollout = await wiring.store.close_rollout(RolloutId(rollout_id), "finished", now())
    if rollout is None:
        raise unknown_rollout(rollout_id)
    if rollout.state == "deleted":
        raise RolloutClosed(f"rollout {rollout_id!r} was deleted")
    return rollout_document(rollout)


@router.delete("/rollouts/{rollout_id}")
async def delete_rollout(rollout_id: str, wiring: Wired) -> JsonObject:
    """Drop a rollout's calls; its id stays taken for ever."""
    await known_rollout(wiring, rollout_id)
    await wiring.store.close_rollout(RolloutId(rollout_id), "deleted", now())
    return {"rollout_id": rollout_id, "state": "deleted"}
