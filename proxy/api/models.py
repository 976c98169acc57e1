"""The models that clients may name: any; listed is the one of the rollout's profile. Asking leaves no trace."""

from fastapi import Request
from starlette.responses import JSONResponse

from proxy import clock
from proxy.api.callers import known_caller
from proxy.api.forms import is_anthropic
from proxy.model import Identity, JsonObject
from proxy.wiring import Wiring


async def list_models(request: Request) -> JSONResponse:
    """The model of the rollout's profile; asks no engine."""
    wiring: Wiring = request.app.state.wiring
    name = _served_model(await known_caller(request, wiring), wiring)
    if is_anthropic(request.url.path, request.headers):
        return JSONResponse({"data": [_anthropic_model(name)], "has_more": False, "first_id": name, "last_id": name})
    return JSONResponse({"object": "list", "data": [_model(name)]})


async def show_model(request: Request, model: str) -> JSONResponse:
    """Any model name is answered for, as any is accepted in calls."""
    await known_caller(request, request.app.state.wiring)
    return JSONResponse(_anthropic_model(model) if is_anthropic(request.url.path, request.headers) else _model(model))


def _served_model(identity: Identity, wiring: Wiring) -> str:
    profile = wiring.profiles.of_rollout(identity.rollout)
    return profile.model or wiring.pool.choose(identity.rollout_id, profile).facts.model


def _model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rollpin"}


def _anthropic_model(name: str) -> JsonObject:
    return {"type": "model", "id": name, "display_name": name, "created_at": clock.iso(0), "lifecycle": "active"}
