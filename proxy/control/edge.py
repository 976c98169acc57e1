"""Where requests of the control plane come in: wiring, JSON bodies, queries, and errors on their way out.

Every fault of a request is a 400 with one readable line, found before anything is changed.
"""

import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from proxy.body import json_object as parse_json_object
from proxy.body import read_body
from proxy.canonical import canonical_json
from proxy.errors import BadAsk, ProxyError, error_headers, openai_error
from proxy.model import JsonObject
from proxy.settings import faults
from proxy.wiring import Wiring

Asked = TypeVar("Asked", bound=BaseModel)
# A list in an item of a list, within a line: the ids of one call or branch.
PIECES_DEEP = 4


async def json_text(document: JsonObject) -> bytes:
    """A document as JSON, beside the event loop.

    In ASCII, so that lone surrogates, which a model or a client may have written, survive as escapes.
    """

    def work() -> bytes:
        text = bytearray()
        for piece in json_pieces(document, PIECES_DEEP):
            text += piece.encode()
        return bytes(text)

    return await run_in_threadpool(work)


def json_pieces(value: Any, deep: int) -> Iterator[str]:
    """JSON in pieces, cut at so many levels: encoding one holds all other threads up.

    An iterator is a list whose items are made as they are reached.
    """
    if deep and isinstance(value, dict):
        for place, (name, item) in enumerate(value.items()):
            yield f"{',' if place else '{'}{json.dumps(name)}:"
            yield from json_pieces(item, deep - 1)
        yield "}" if value else "{}"
    elif isinstance(value, Iterator) or (deep and isinstance(value, list) and value and isinstance(value[0], dict)):
        yield "["
        for place, item in enumerate(value):
            yield "," if place else ""
            yield from json_pieces(item, deep - 1)
        yield "]"
    else:
        yield json.dumps(value, separators=(",", ":"), allow_nan=False)


async def json_answer(document: JsonObject) -> Response:
    """An answer with a document that may be large."""
    return Response(await json_text(document), media_type="application/json")


class ControlRoute(APIRoute):
    """A route whose errors are told in the form that OpenAI clients expect."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await handle(request)
            except ProxyError as error:
                return JSONResponse(openai_error(error), error.status, headers=error_headers(error))

        return told


def wiring_of(request: Request) -> Wiring:
    """The parts of the proxy that this request came to."""
    wiring: Wiring = request.app.state.wiring
    return wiring


Wired = Annotated[Wiring, Depends(wiring_of)]


async def json_object(request: Request, wiring: Wired) -> JsonObject:
    """The body as a JSON object that can be stored and answered as it stands; raises BadAsk or BodyTooLarge."""
    text = await read_body(request, wiring.settings.limits.body_bytes)
    value = parse_json_object(text)
    try:
        canonical_json(value).decode()
    except UnicodeDecodeError as error:
        raise BadAsk("the body is not valid JSON: text that is not valid Unicode", code="invalid_json") from error
    return value


def body_of(kind: type[Asked]) -> Callable[[JsonObject], Awaitable[Asked]]:
    """A dependency that reads a body of this kind."""

    async def read(body: Annotated[JsonObject, Depends(json_object)]) -> Asked:
        return checked(kind, body)

    return read


def query_of(kind: type[Asked]) -> Callable[[Request], Asked]:
    """A dependency that reads the query of this kind."""

    def read(request: Request) -> Asked:
        return checked(kind, dict(request.query_params))

    return read


def checked(kind: type[Asked], value: JsonObject) -> Asked:
    """The value as this kind; raises BadAsk with all faults on one line."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        where = error.errors()[0]["loc"]
        raise BadAsk("; ".join(faults(error, "field")), param=str(where[0]) if where else None) from error
