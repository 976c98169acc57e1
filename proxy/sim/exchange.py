"""One generation call on the wire: drawn at once, told token by token, and broken where the script says so."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from proxy import clock
from proxy.sim.apis import Api
from proxy.sim.ask import Ask, Event, PauseMode, Setup, Spans
from proxy.sim.cache import PrefixCache, mixture
from proxy.sim.dialect import Dialect
from proxy.sim.draw import Completion, Noise, draw
from proxy.sim.flaws import spoil
from proxy.sim.script import Fault, FaultKind, Item, Say
from proxy.sim.speech import voice_for
from proxy.sim.template import Json

SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]
HELD_POLL_S = 0.005
"""How often a paused call looks whether it may go on."""
HALT_POLL_S = 60.0
"""The same for one that was halted, which is woken when it may."""


class ClientGone(Exception):
    """The client has closed the connection."""


class ConnectionCut(Exception):
    """The script has cut the connection."""


class Host(Protocol):
    """What a call needs of its engine."""

    setup: Setup
    dialect: Dialect
    pause: PauseMode | None
    cache: PrefixCache

    @property
    def draws_by_rank(self) -> bool:
        """Whether another call in the batch decides how this one is drawn."""
        ...

    def begin(self, exchange: "Exchange") -> None:
        """Count the call as running."""
        ...

    def end(self, exchange: "Exchange", *, client_gone: bool) -> None:
        """Count the call as over."""
        ...

    def cut_connection(self, client: Any) -> None:
        """Close the connection to a client without another word."""
        ...


class Exchange(Response):
    """The answer to one generation request."""

    def __init__(self, host: Host, ask: Ask, item: Item | None, api: Api) -> None:
        super().__init__()
        self.ask = ask
        self._host, self._api = host, api
        self._fault = item if isinstance(item, Fault) else None
        self._say = item if isinstance(item, Say) else item.say if item else None
        self._stirred = asyncio.Event()
        self._is_gone = self._is_aborted = self._may_go_on = False
        self._told = 0
        self._is_retracted = self._is_redrawn = False
        self.is_halted = False
        """Whether it waits to be told to go on."""
        self._completions: tuple[Completion, ...] = ()
        self._versions: list[tuple[str, int]] = []
        self._weights, self._speaks = "", ""
        """The weights at the last look, and those that speak: a mixture where old ones computed the cache."""

    @property
    def has_begun(self) -> bool:
        """Whether it has drawn."""
        return bool(self._completions)

    def abort(self) -> None:
        """End it with what has been told so far."""
        self._is_aborted = True
        self._stirred.set()

    def go_on(self) -> None:
        """End its silence, slowness or halt, and be none of them again."""
        self._may_go_on = True
        self._stirred.set()

    def retract(self) -> None:
        """Compute the cache anew before another token is drawn."""
        self._is_retracted = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client leaves first."""
        self._host.begin(self)
        is_cut = False
        try:
            async with self._watched(receive):
                try:
                    await self._answer(scope, receive, send)
                except ConnectionCut:
                    is_cut = True
                    self._host.cut_connection(scope["client"])
                    await self._stirred.wait()
        except ClientGone:
            pass
        finally:
            self._host.end(self, client_gone=self._is_gone and not is_cut)

    @asynccontextmanager
    async def _watched(self, receive: Receive) -> AsyncIterator[None]:
        """Notice when the client leaves."""
        watcher = asyncio.create_task(self._watch(receive))
        try:
            yield
        finally:
            watcher.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._stirred.set()

    async def _rest(self, seconds: float) -> None:
        """Sleep, as long as there is a client to sleep for and nobody aborts the call or tells it to go on."""
        if seconds <= 0 or self._stirred.is_set():
            await asyncio.sleep(0)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stirred.wait()
        if self._is_gone:
            raise ClientGone
        if not self._is_aborted:
            self._stirred.clear()

    async def _silence(self, seconds: float) -> None:
        """Rest in the middle of what is told, unless the call was told to go on."""
        await self._rest(0 if self._may_go_on else seconds)

    async def _halt(self) -> None:
        """Stay at the token that the script names, until the call is told to go on."""
        while self._halts():
            self.is_halted = True
            await self._rest(HALT_POLL_S)
        self.is_halted = False

    def _halts(self) -> bool:
        is_there = self._fault is not None and self._fault.kind == "halt" and self._told >= self._fault.after
        return is_there and not self._may_go_on and not self._is_aborted

    async def _work(self, tokens: int) -> None:
        """The time so many tokens take; none of it passes while the engine is paused."""
        slow = self._fault.seconds if self._fault and self._fault.kind == "slow" else None
        await self._silence((self._host.setup.token_delay_s if slow is None else slow) * tokens)
        await self._halt()
        await self._unpaused()

    async def _unpaused(self) -> None:
        """Wait while the engine is paused, and note what changed; draining lets go on what has begun."""
        while (mode := self._host.pause) and not self._is_aborted and not (mode == "wait" and self.has_begun):
            await self._rest(HELD_POLL_S)
        version, weights = self._host.setup.weight_version, self._host.setup.weights
        if not self._versions or self._versions[-1][0] != version:
            self._versions.append((version, self._told))
        if self.has_begun and weights != self._weights:
            self._speaks = weights if self._is_retracted else mixture(self._speaks, weights)
            self._weights, self._is_redrawn = weights, True
            self._completions = tuple(self._redraw(choice, one) for choice, one in enumerate(self._completions))
        self._is_retracted = False

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault, dialect = self._fault, self._host.dialect
        if fault and fault.kind == "stall_before_headers":
            await self._silence(fault.seconds)
        if fault and fault.kind == "error_frame" and not self.ask.stream:
            fault = Fault.status(fault.code)
        if fault and fault.kind in ("status", "refuse", "html"):
            await _refusal(fault, dialect, self._api)(scope, receive, send)
            return
        await self._unpaused()
        self._weights = self._host.setup.weights
        self._speaks = self._host.cache.met(self.ask, self._weights)
        # On a thread: a long reply must not hold up the others.
        self._completions = await asyncio.to_thread(lambda: tuple(map(self._draw, range(self.ask.n))))
        await (self._stream(send) if self.ask.stream else self._whole(send))
        for completion in self._completions:
            self._host.cache.keep(self.ask, completion.ids, self._speaks)

    def _draw(self, choice: int) -> Completion:
        fault, drawn = self._fault, self._drawn_from(self.ask, choice)
        return drawn.cut(fault.after, "abort") if fault and fault.kind == "abort" else drawn

    def _drawn_from(self, ask: Ask, choice: int) -> Completion:
        seed = self._host.dialect.seed(ask, self._host.setup, choice)
        sampling = replace(ask.sampling, in_ranks=self._host.draws_by_rank)
        manner, raw = self._host.dialect.manner, self._host.setup.raw_logprobs
        manner = manner if raw is None else replace(manner, raw_logprobs=raw)
        noise = Noise(clock.new_run_seed() if seed is None else seed, sampling, manner)
        voice = voice_for(ask, self._say, self._host.setup, self._speaks)
        return draw(ask.prompt, noise, ask.limits, voice, top=ask.logprobs or 0)

    def _redraw(self, choice: int, before: Completion) -> Completion:
        """What has been told of a choice, and the rest under other weights; vLLM's noise is not gone on with."""
        told = self._told
        if len(before.ids) <= told:
            return before
        limits = replace(self.ask.limits, max_tokens=self.ask.limits.max_tokens - told, min_tokens=0)
        rest = self._drawn_from(replace(self.ask, prompt=self.ask.prompt + before.ids[:told], limits=limits), choice)
        return replace(
            rest,
            ids=before.ids[:told] + rest.ids,
            logprobs=before.logprobs[:told] + rest.logprobs,
            tops=before.tops[:told] + rest.tops,
        )

    def _cut_short(self) -> None:
        """Keep what has been told of each choice, and call it aborted."""
        told = self._told
        self._completions = tuple(c.cut(told, "abort") if len(c.ids) > told else c for c in self._completions)

    async def _whole(self, send: Send) -> None:
        told = -1
        while (told := told + 1) < max(len(c.ids) for c in self._completions):
            self._told = told
            await self._work(1)
            if self._is_aborted:
                self._cut_short()
                break
        dialect, setup = self._host.dialect, self._host.setup
        own = Event(dialect.whole(self.ask, self._completions, setup, self._spans()), 0)
        await self._send_whole(_dump(self._api.whole(self.ask, self._spoiled([own])[0].payload)), send)

    def _spans(self) -> Spans:
        """Which weights made which tokens of the first choice."""
        ends = [*(start for _, start in self._versions[1:]), len(self._completions[0].ids)]
        return tuple((version, start, end) for (version, start), end in zip(self._versions, ends, strict=True))

    async def _send_whole(self, body: bytes, send: Send) -> None:
        half = len(body) // 2
        body = body[:half] if self._has("half_json") else body
        length = str(len(body)).encode()
        headers = [(b"content-length", length), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self._has("cut", "stall"):
            await send(_piece(body[:half]))
            await self._break()
            body = body[half:]
        await send(_piece(body, more=False))

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        sent, events, is_cut = 0, self._events(), False
        while sent < len(events):
            if await self._breaks_stream(events, sent, send):
                return
            await self._work(events[sent].tokens - self._told)
            if self._is_aborted and not is_cut:
                self._cut_short()
                events, is_cut = self._events(), True
                continue
            if self._is_redrawn:
                events, self._is_redrawn = self._events(), False
            frame = _frame(events[sent])
            if self._has("half_json") and sent == _last_that_tells(events):
                await send(_piece(frame[: len(frame) // 2], more=False))
                return
            await send(_piece(frame))
            self._told = max(self._told, events[sent].tokens)
            sent += 1
        if not await self._breaks_stream(events, sent, send, or_later=True):
            await send(_piece(self._api.closing, more=False))

    def _events(self) -> list[Event]:
        own = self._host.dialect.events(self.ask, self._completions, self._host.setup)
        return self._api.events(self.ask, self._spoiled(own))

    def _spoiled(self, events: list[Event]) -> list[Event]:
        return spoil(events, self._fault.kind) if self._fault else events

    def _has(self, *kinds: FaultKind) -> bool:
        return self._fault is not None and self._fault.kind in kinds

    async def _breaks_stream(self, events: Sequence[Event], sent: int, send: Send, *, or_later: bool = False) -> bool:
        """Break the stream if this is the place; true when nothing more may follow."""
        fault = self._fault
        if fault is None or not self._has("cut", "stall", "error_frame"):
            return False
        if fault.after != sent and not (or_later and fault.after > sent):
            return False
        if fault.kind == "error_frame":
            error = self._host.dialect.error_event(fault.code, "the engine broke")
            last = self._api.broken(self.ask, events[:sent], fault.code, error)
            await send(_piece(_frame(last) + self._api.closing, more=False))
            return True
        await self._break()
        return False

    async def _break(self) -> None:
        """Stay silent for a while, if not for longer; where it is a cut, the connection is gone then."""
        if self._fault:
            await self._silence(self._fault.seconds)
        if self._has("cut"):
            raise ConnectionCut


def _refusal(fault: Fault, dialect: Dialect, api: Api) -> Response:
    if fault.kind == "html":
        page = f"<html><body><h1>{fault.code} Bad Gateway</h1></body></html>"
        return HTMLResponse(page, fault.code)
    headers: Mapping[str, str] = {"retry-after": "1"} if fault.kind == "refuse" else {}
    body: Json = api.error(fault.code, dialect.error(fault.code, "scripted")) if fault.body is None else fault.body
    return JSONResponse(body, fault.code, headers)


def _last_that_tells(events: list[Event]) -> int:
    """The last event but for those of chat that have nothing but ids and usage."""
    return max(place for place, event in enumerate(events) if event.payload.get("choices") != [])


def _dump(payload: Json) -> bytes:
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def _frame(event: Event) -> bytes:
    name = f"event: {event.name}\n".encode() if event.name else b""
    return name + b"data: " + _dump(event.payload) + b"\n\n"


def _piece(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
