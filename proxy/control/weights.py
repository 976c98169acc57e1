"""Pauses and new weights, as a trainer drives them through an update."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from proxy import update
from proxy.clock import iso
from proxy.control.auth import ADMIN
from proxy.control.bodies import Name, Strict
from proxy.control.edge import ControlRoute, Wired, body_of
from proxy.model import JsonObject, Pause, PauseMode, Weights
from proxy.settings import LONGEST_TTL_S

router = APIRouter(route_class=ControlRoute, dependencies=[ADMIN])

DEFAULT_LEASE_S = 600.0


class PauseBody(Strict):
    """Body of POST /pause."""

    mode: PauseMode = "abort"
    lease_s: float = Field(DEFAULT_LEASE_S, gt=0, le=LONGEST_TTL_S)


class WeightsBody(Strict):
    """Body of POST /weights."""

    version: Name
    engines: list[str] | None = Field(None, min_length=1)
    """Names or URLs; all engines where it is absent."""


@router.post("/pause")
async def pause(wiring: Wired, body: Annotated[PauseBody, Depends(body_of(PauseBody))]) -> JsonObject:
    """Hold back calls, pause the engines, and answer when both hold on every replica."""
    return {"paused": True, **pause_document(await update.pause(body.mode, body.lease_s, wiring))}


@router.post("/resume")
async def resume(wiring: Wired) -> JsonObject:
    """Resume the engines, and let calls through."""
    engines = await update.resume(wiring)
    known = {engine.name: wiring.weights.of(engine).version for engine in engines}
    return {"paused": False, "weights": known}


@router.post("/weights")
async def weights(wiring: Wired, body: Annotated[WeightsBody, Depends(body_of(WeightsBody))]) -> JsonObject:
    """Tell that engines have new weights."""
    told = await update.new_weights(body.version, body.engines, wiring)
    return {
        "version": body.version,
        "engines": [
            {
                "name": one.engine.name,
                "reported": one.reported,
                "flushed": one.weights.is_flushed,
                "epoch": one.weights.epoch,
            }
            for one in told
        ],
    }


def weights_document(weights: Weights, noted: Weights) -> JsonObject:
    """What is known of an engine's weights, and the version that was told of a process that may be gone."""
    return {
        "version": weights.version,
        "lapsed": noted.version if weights.version is None else None,
        "epoch": weights.epoch,
        "told_by": weights.told_by,
        "flushed": weights.is_flushed,
    }


def pause_document(pause: Pause) -> JsonObject:
    return {
        "pause_id": pause.pause_id,
        "mode": pause.mode,
        "asked_at": iso(pause.asked_at),
        "lease_until": iso(pause.lease_until),
    }
