"""The engine behind the sockets: the script, what it has received, what runs, and its HTTP application."""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from proxy.sim.apis import MESSAGES, OWN, Api
from proxy.sim.ask import Ask, EngineDeath, PauseMode, Refusal, Setup
from proxy.sim.cache import PrefixCache
from proxy.sim.dialect import Dialect
from proxy.sim.exchange import Exchange
from proxy.sim.mark import Marked
from proxy.sim.script import Fault, Item, item_from_json
from proxy.sim.sglang import SGLang
from proxy.sim.template import Json
from proxy.sim.vllm import VLLM

SCORED_KEPT = 100
Kind = Literal["vllm", "sglang"]
DIALECTS: dict[str, Callable[[], Dialect]] = {"vllm": VLLM, "sglang": SGLang}

Fits = Callable[[Json], bool]
"""Tells by the body of a request, in chat form, whether it is the one that is meant."""
Read = Callable[[Json, Mapping[str, str], Setup], Ask]


@dataclass(frozen=True, slots=True)
class Received:
    """A generation request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Json


@dataclass(frozen=True, slots=True)
class Recurring:
    """Faults that come back, in turn, with every so many calls."""

    faults: tuple[Fault, ...]
    every: int

    def at(self, call: int) -> Fault | None:
        """What happens to the call of this number, counted from 1."""
        number, rest = divmod(call, self.every)
        return None if rest or not self.faults else self.faults[(number - 1) % len(self.faults)]


class Engine:
    """State shared by the server's thread and its owner's."""

    def __init__(
        self, kind: Kind, setup: Setup, recurring: Recurring | None = None, keep_requests: int | None = None
    ) -> None:
        self.kind, self.setup = kind, setup
        self.dialect = DIALECTS[kind]()
        self.requests: list[Received] = []
        self.refused: list[Received] = []
        self.aborted = self.served = 0
        self.pause: PauseMode | None = None
        self.started_at = 0.0
        self.cache = PrefixCache()
        self.scored: deque[Json] = deque(maxlen=SCORED_KEPT)
        self.on_cut: Callable[[Any], None] = lambda _: None
        self.on_death: Callable[[], None] = lambda: None
        self._calls: list[Exchange] = []
        self._lock = threading.Lock()
        self._queue: deque[Item] = deque()
        self._waiting: list[tuple[Fits, Item]] = []
        self._always: Item | None = None
        self._recurring, self._taken = recurring, 0
        self._is_ranked = False
        self._keep = keep_requests

    @property
    def running(self) -> int:
        """How many calls are being answered."""
        return len(self._calls)

    @property
    def draws_by_rank(self) -> bool:
        """Whether a call that filters has joined the batch since it was last empty, on an engine where that tells."""
        return self._is_ranked and self.kind == "sglang" and self.setup.deterministic

    @property
    def busy(self) -> int:
        """How many calls have begun to draw and are not over."""
        return sum(exchange.has_begun for exchange in self._calls)

    @property
    def halted(self) -> int:
        """How many calls wait to be told to go on."""
        return sum(exchange.is_halted for exchange in self._calls)

    def script(self, *items: Item) -> None:
        """What happens to the next generation requests, one item each."""
        with self._lock:
            self._queue.extend(items)

    def script_when(self, fits: Fits, item: Item) -> None:
        """What happens to the first generation request whose body, in chat form, fits, whenever it comes."""
        with self._lock:
            self._waiting.append((fits, item))

    def always(self, item: Item | None) -> None:
        """What happens whenever nothing else is scripted; None for the toy model's own words."""
        with self._lock:
            self._always = item

    def next_item(self, body: Json) -> Item | None:
        """Take off the script what happens to this request."""
        with self._lock:
            self._taken += 1
            for waiting in self._waiting:
                if waiting[0](body):
                    self._waiting.remove(waiting)
                    return waiting[1]
            if self._queue:
                return self._queue.popleft()
            return (self._recurring and self._recurring.at(self._taken)) or self._always

    def begin(self, exchange: Exchange) -> None:
        """Count the call as running."""
        self._calls.append(exchange)
        self._is_ranked |= exchange.ask.sampling.ranks_its_batch

    def end(self, exchange: Exchange, *, client_gone: bool) -> None:
        """Count the call as over."""
        # Whoever sees that it no longer runs finds it counted.
        self.served += 1
        self.aborted += client_gone
        self._calls.remove(exchange)
        self._is_ranked &= bool(self._calls)

    def hold(self, mode: PauseMode) -> None:
        """Pause; what runs has its cache computed anew later, but for `in_place`."""
        self.pause = mode
        for exchange in self._calls if mode != "in_place" else ():
            exchange.retract()

    def abort(self, start_of_id: str) -> None:
        """Abort the running calls whose id starts so; an empty string means all."""
        for exchange in self._calls:
            if exchange.ask.id.startswith(start_of_id):
                exchange.abort()

    def go_on(self) -> None:
        """Let the running calls go on without further delay."""
        for exchange in self._calls:
            exchange.go_on()

    def cut_connection(self, client: Any) -> None:
        """Close the connection to a client without another word."""
        self.on_cut(client)

    def label_weights(self, version: str) -> None:
        """Change the weights' label."""
        self.setup = replace(self.setup, weight_version=version)

    def load_weights(self, weights: str) -> None:
        """Take other weights; their label stays."""
        self.setup = replace(self.setup, weights=weights)

    def flush(self) -> None:
        """Empty the prefix cache."""
        self.cache.flush()

    def app(self) -> ASGIApp:
        """The HTTP application."""
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/v1/messages", self._answer_message, methods=["POST"]),
            Route("/v1/messages/count_tokens", self._count_tokens, methods=["POST"]),
            Route("/v1/responses", self._respond, methods=["POST"]),
            Route("/_sim/script", self._take_script, methods=["POST"]),
            Route("/_sim/go_on", self._take_go_on, methods=["POST"]),
            Route("/_sim/requests", self._tell_requests),
            Route("/_sim/state", self._tell_state),
            *self.dialect.routes(self),
        ]
        return Marked(Starlette(routes=routes, exception_handlers={HTTPException: _plain_error}))

    async def _chat(self, request: Request) -> Response:
        return await self._generate(request, self.dialect.read, OWN)

    async def _complete(self, request: Request) -> Response:
        return await self._generate(request, self.dialect.read_plain, OWN)

    async def _answer_message(self, request: Request) -> Response:
        return await self._generate(request, self.dialect.read, MESSAGES)

    async def _respond(self, request: Request) -> Response:
        return await self._generate(request, self.dialect.read, self.dialect.responses)

    async def _count_tokens(self, request: Request) -> Response:
        """How many tokens a Messages body is; its `max_tokens` is left out."""
        try:
            body = await _json_object(request, self.dialect)
            ask = self.dialect.read(MESSAGES.to_chat({**body, "max_tokens": 1}), dict(request.headers), self.setup)
        except Refusal as refusal:
            return _refused(refusal, MESSAGES)
        return JSONResponse({"input_tokens": len(ask.prompt)})

    async def _generate(self, request: Request, read: Read, api: Api) -> Response:
        try:
            body = await _json_object(request, self.dialect)
        except Refusal as refusal:
            return _refused(refusal, api)
        headers = dict(request.headers)
        received = Received(request.method, request.url.path, headers, body)
        try:
            ask = replace(read(api.to_chat(body), headers, self.setup), sent=body)
        except Refusal as refusal:
            self._remember(self.refused, received)
            return _refused(refusal, api)
        except EngineDeath:
            self._remember(self.requests, received)
            self.on_death()
            return Response(status_code=500)
        self._remember(self.requests, received)
        return Exchange(self, ask, self.next_item(ask.body), api)

    def _remember(self, kept: list[Received], received: Received) -> None:
        kept.append(received)
        if self._keep is not None:
            del kept[: -self._keep]

    async def _take_script(self, request: Request) -> Response:
        """`[ITEM, ...]` or one item, or `{"always": ITEM}`."""
        written = await request.json()
        try:
            if "always" in written:
                self.always(item_from_json(written["always"]) if written["always"] else None)
            else:
                self.script(*map(item_from_json, written if isinstance(written, list) else [written]))
        except (KeyError, TypeError, ValueError) as problem:
            return JSONResponse({"error": f"not a script: {problem}"}, 400)
        return JSONResponse({"scripted": len(self._queue)})

    async def _take_go_on(self, request: Request) -> Response:
        self.go_on()
        return await self._tell_state(request)

    async def _tell_requests(self, _: Request) -> Response:
        return JSONResponse([asdict(received) for received in self.requests])

    async def _tell_state(self, _: Request) -> Response:
        return JSONResponse(
            {"running": self.running, "halted": self.halted, "aborted": self.aborted, "served": self.served}
        )


def _refused(refusal: Refusal, api: Api) -> Response:
    return JSONResponse(api.error(refusal.status, refusal.body), refusal.status)


async def _json_object(request: Request, dialect: Dialect) -> Json:
    """The body, if it is JSON by its type and by its looks."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(400, dialect.error(400, message))
    try:
        body = await request.json()
    except json.JSONDecodeError as problem:
        raise Refusal(400, dialect.error(400, f"invalid JSON: {problem}")) from None
    if not isinstance(body, dict):
        raise Refusal(400, dialect.error(400, "Input should be a valid dictionary"))
    return body


async def _plain_error(_: Request, error: Exception) -> Response:
    """Unknown paths and methods, as FastAPI answers them."""
    assert isinstance(error, HTTPException)  # noqa: S101  registered for this type alone
    return JSONResponse({"detail": error.detail}, error.status_code)
