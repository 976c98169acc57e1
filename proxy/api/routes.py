"""The data plane: the routes that harnesses see, under a rollout's own base URL and under the plain one."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from proxy.api.callers import known_caller
from proxy.api.chat import ChatView, read_ask
from proxy.api.completions import COMPLETIONS
from proxy.api.delivery import DeliveryResponse
from proxy.api.messages import MESSAGES
from proxy.api.messages.count import count_prompt
from proxy.api.messages.reader import read_prompt
from proxy.api.models import list_models, show_model
from proxy.api.responses import RESPONSES
from proxy.api.responses.names import request_of_response
from proxy.api.responses.output import recorded_response
from proxy.api.responses.recall import find_response
from proxy.api.view import ClientApi
from proxy.body import json_object, read_body
from proxy.errors import BadAsk, NotFound
from proxy.model import JsonObject
from proxy.settings import Settings
from proxy.turn import serve_turn
from proxy.wiring import Wiring

ROLLOUT_BASE = "/rollouts/{rollout_id}/v1"
PLAIN_BASE = "/v1"
# What Anthropic's clients are given; not all of them append the version.
UNVERSIONED_BASE = "/rollouts/{rollout_id}"
CALLS: Mapping[str, ClientApi] = {
    "chat/completions": ClientApi(read_ask, ChatView),
    "responses": RESPONSES,
    "completions": COMPLETIONS,
}
"""Where a model call is asked for in OpenAI's APIs."""
# FastAPI, unlike HTTP, takes GET for GET alone.
READ = ["GET", "HEAD"]
# Some ten milliseconds of parsing and hashing.
BIG_BODY_BYTES = 500_000

Read = TypeVar("Read")


def data_routes() -> APIRouter:
    """Every data route, at both bases."""
    router = APIRouter()
    for base in (ROLLOUT_BASE, PLAIN_BASE):
        for path, api in CALLS.items():
            router.add_api_route(f"{base}/{path}", calls_of(api), methods=["POST"])
        router.add_api_route(f"{base}/responses/{{response_id}}", show_response, methods=READ)
        router.add_api_route(f"{base}/models", list_models, methods=READ)
        router.add_api_route(f"{base}/models/{{model:path}}", show_model, methods=READ)
        router.add_api_route(base, greet, methods=READ)
        router.add_api_route(f"{base}/", greet, methods=READ)
    for base in (ROLLOUT_BASE, PLAIN_BASE, UNVERSIONED_BASE):
        router.add_api_route(f"{base}/messages", calls_of(MESSAGES), methods=["POST"])
        router.add_api_route(f"{base}/messages/count_tokens", count_tokens, methods=["POST"])
    router.add_api_route("/rollouts/{rollout_id}", greet, methods=["HEAD"])
    router.add_api_route("/rollouts/{rollout_id}/", greet, methods=READ)
    router.add_api_route("/", greet, methods=READ)
    return router


def calls_of(api: ClientApi) -> Callable[[Request], Awaitable[Response]]:
    """The handler of one API's calls."""

    async def call(request: Request) -> Response:
        return await model_call(request, api)

    return call


async def greet() -> JsonObject:
    """For clients that look whether anybody is there; says nothing of any rollout."""
    return {"service": "rollpin"}


async def count_tokens(request: Request) -> JSONResponse:
    """How long the prompt of a Messages body is; no call, and no trace in the rollout."""
    wiring: Wiring = request.app.state.wiring
    identity = await known_caller(request, wiring)
    text = await read_body(request, wiring.settings.limits.body_bytes)
    ask = await without_blocking(text, lambda: read_prompt(identity, json_object(text), wiring.settings))
    return JSONResponse({"input_tokens": await count_prompt(ask, wiring)})


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
        served,
        view,
        api.tell,
        stream=ask.stream,
        hold=wiring.settings.hold_streams,
        patience_s=patience(ask.stream, wiring.settings),
        deliveries=wiring.deliveries,
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
