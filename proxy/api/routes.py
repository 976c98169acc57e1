"""The data plane: the routes that harnesses see, under a rollout's own base URL and under the plain one."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from proxy import clock
from proxy.api.chat import ChatView, read_ask
from proxy.api.completions import COMPLETIONS
from proxy.api.delivery import DeliveryResponse
from proxy.api.responses import RESPONSES
from proxy.api.responses.names import request_of_response
from proxy.api.responses.output import recorded_response
from proxy.api.responses.recall import find_response
from proxy.api.view import ClientApi
from proxy.body import json_object, read_body
from proxy.errors import BadAsk, Conflict, NotFound, RolloutClosed
from proxy.model import Identity, JsonObject, Rollout, RolloutId
from proxy.request.identify import Caller, authorise, identify, lane_signals, retry_count
from proxy.settings import Settings, is_loopback
from proxy.turn import serve_turn
from proxy.wiring import Wiring

ROLLOUT_BASE = "/rollouts/{rollout_id}/v1"
PLAIN_BASE = "/v1"
CALLS: Mapping[str, ClientApi] = {
    "chat/completions": ClientApi(read_ask, ChatView),
    "responses": RESPONSES,
    "completions": COMPLETIONS,
}
"""Where a model call is asked for, and in which API."""
# FastAPI, unlike HTTP, takes GET for GET alone.
READ = ["GET", "HEAD"]
DEFAULT_RUN = "default"
# In the metadata of a rollout that its first call opened: any key is accepted for it.
AUTO_REGISTERED = "auto_registered"
# Some ten milliseconds of parsing and hashing.
BIG_BODY_BYTES = 500_000

Read = TypeVar("Read")


def data_routes() -> APIRouter:
    """Every data route, at both bases."""
    router = APIRouter()
    for base in (ROLLOUT_BASE, PLAIN_BASE):
        for path, api in CALLS.items():
            router.add_api_route(f"{base}/{path}", _calls_of(api), methods=["POST"])
        router.add_api_route(f"{base}/responses/{{response_id}}", show_response, methods=READ)
        router.add_api_route(f"{base}/models", list_models, methods=READ)
        router.add_api_route(f"{base}/models/{{model:path}}", show_model, methods=READ)
        router.add_api_route(base, greet, methods=READ)
        router.add_api_route(f"{base}/", greet, methods=READ)
    router.add_api_route("/rollouts/{rollout_id}", greet, methods=["HEAD"])
    router.add_api_route("/rollouts/{rollout_id}/", greet, methods=READ)
    router.add_api_route("/", greet, methods=["HEAD"])
    return router


def _calls_of(api: ClientApi) -> Callable[[Request], Awaitable[Response]]:
    async def call(request: Request) -> Response:
        return await model_call(request, api)

    return call


async def greet() -> JsonObject:
    """For clients that look whether anybody is there; says nothing of any rollout."""
    return {"service": "rollpin"}


async def model_call(request: Request, api: ClientApi) -> Response:
    """One model call, in the words of one API."""
    wiring: Wiring = request.app.state.wiring
    identity = await known_caller(request, wiring)
    text = await read_body(request, wiring.settings.limits.body_bytes)
    body = await without_blocking(text, lambda: json_object(text))
    read_ask = await api.reader(body, identity.rollout_id, wiring.store)
    ask = await without_blocking(text, lambda: read_ask(identity, body, wiring.settings))
    served = await serve_turn(ask, wiring)
    view = api.view(ask, served.running.head, wiring.settings.reasoning_field)
    return DeliveryResponse(
        served, view, api.tell, stream=ask.stream, patience_s=patience(ask.stream, wiring.settings), store=wiring.store
    )


async def without_blocking(text: bytes, read: Callable[[], Read]) -> Read:
    """Read a body here, or in a thread where it is so big that other calls would wait for it."""
    return read() if len(text) < BIG_BODY_BYTES else await asyncio.to_thread(read)


def patience(stream: bool, settings: Settings) -> float | None:  # noqa: FBT001
    """Seconds of silence before a sign of life; None where there is none."""
    return settings.timeouts.heartbeat_after_s if stream or settings.heartbeat_unstreamed else None


async def show_response(request: Request, response_id: str) -> Response:
    """A response that this rollout asked for, out of the store."""
    wiring: Wiring = request.app.state.wiring
    identity = await known_caller(request, wiring)
    if request.query_params.get("stream") == "true":
        raise BadAsk("a recorded response is not streamed", param="stream")
    call = await find_response(request_of_response(response_id) or "", identity.rollout_id, wiring.store)
    if call is None:
        raise NotFound(f"this rollout has no response {response_id[:80]!r}", code="unknown_response")
    return Response(json.dumps(recorded_response(call)), media_type="application/json")


async def list_models(request: Request) -> Response:
    """The model of the rollout's profile; asks no engine and leaves no trace in the rollout."""
    wiring: Wiring = request.app.state.wiring
    identity = await known_caller(request, wiring)
    return JSONResponse({"object": "list", "data": [_model(name) for name in _served_models(identity, wiring)]})


async def show_model(request: Request, model: str) -> Response:
    """Any model name is answered for, as any is accepted in calls."""
    await known_caller(request, request.app.state.wiring)
    return JSONResponse(_model(model))


async def known_caller(request: Request, wiring: Wiring) -> Identity:
    """The identity behind a request; raises WrongKey, NotFound or RolloutClosed."""
    caller = identify(
        request.headers, request.path_params.get("rollout_id"), trust_header=wiring.settings.trust_rollout_header
    )
    rollout = await wiring.store.rollout(caller.rollout_id)
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
        idempotency_key=request.headers.get("idempotency-key"),
        retry_count=retry_count(request.headers),
    )


def check_open(rollout: Rollout) -> None:
    """Raise RolloutClosed unless calls are still welcome."""
    is_over = rollout.expires_at is not None and rollout.expires_at <= clock.now()
    state = "expired" if rollout.state == "open" and is_over else rollout.state
    if state != "open":
        raise RolloutClosed(f"rollout {rollout.rollout_id!r} is {state}", code=f"rollout_{state}")


async def _register(caller: Caller, wiring: Wiring) -> Rollout | None:
    """Create an unknown rollout with defaults for everything; of several first uses at once one creates it."""
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
    with contextlib.suppress(Conflict):
        await wiring.store.create_rollouts([fresh])
    return await wiring.store.rollout(caller.rollout_id)


def _is_local(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)


def _served_models(identity: Identity, wiring: Wiring) -> list[str]:
    profile = wiring.profiles.of_rollout(identity.rollout)
    if profile.model:
        return [profile.model]
    return [wiring.pool.choose(RolloutId(identity.rollout_id), profile).facts.model]


def _model(name: str) -> JsonObject:
    shown: dict[str, Any] = {"id": name, "object": "model", "created": 0, "owned_by": "rollpin"}
    return shown
