"""Every generation passes an engine's gate, which keeps calls of two sampling classes out of one batch.

SGLang in deterministic mode draws a whole batch by one of two paths: over the whole vocabulary, or over the sorted,
filtered one as soon as a single call in the batch filters (`need_top_p`, `need_top_k` in sampling_batch_info.py of
0.5.23), and it stays with the second until the batch has drained. A greedy call counts as filtering. The same seed then
gives a plain call other tokens. So one class runs at a time, and the classes take turns.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import structlog

from proxy import metrics
from proxy.errors import EngineFault
from proxy.model import EngineRef, JsonObject

SamplingClass: TypeAlias = Literal["plain", "filtered"]

# An engine goes on with a call for up to 2 s after its reader has left (SGLang's background abort).
LINGER_S = 3.0

log = structlog.get_logger()


def class_of(body: JsonObject) -> SamplingClass:
    """The path that a request takes: `plain` only where it says so itself; what it leaves out the engine decides."""
    told = body.get("sampling_params", body)
    draws = told.get("temperature", 0) > 0
    takes_all = (told.get("top_p"), told.get("top_k"), told.get("min_p")) == (1, -1, 0)
    return "plain" if draws and takes_all else "filtered"


@dataclass(slots=True, eq=False)
class Passage:
    """One call at a gate."""

    sampling_class: SamplingClass
    asked_at: float
    is_disturbed: bool = False
    """Whether it shared a batch with a call of another class, so that its seed does not settle its tokens."""


class Gate:
    """Who is inside and who waits; it decides, and knows no clock: times are told, in seconds.

    A class that is inside lets its own calls in until one of another class has waited `class_wait_s` of its turn; then
    none that came after that one starts before it. Nobody starts while two classes are mixed.
    """

    def __init__(self, class_wait_s: float) -> None:
        self._class_wait_s = class_wait_s
        self._turn_began = 0.0
        self.inside: list[Passage] = []
        self.waiting: list[Passage] = []

    @property
    def load(self) -> int:
        """Calls inside and before the gate."""
        return len(self.inside) + len(self.waiting)

    @property
    def is_mixed(self) -> bool:
        """Whether the batch holds, or since it was last empty held, both classes."""
        return any(passage.is_disturbed for passage in self.inside)

    def ask(self, passage: Passage) -> None:
        """Stand in the queue."""
        self.waiting.append(passage)

    def admit(self, now: float) -> tuple[Passage, ...]:
        """Let in whoever may start now."""
        return tuple(self._start(passage, now) for passage in list(self.waiting) if self._may_start(passage, now))

    def force(self, passage: Passage, now: float) -> None:
        """Let one in whose patience is over; everyone whom it disturbs is marked."""
        self._start(passage, now)
        if self.is_mixed or any(other.sampling_class != passage.sampling_class for other in self.inside):
            for touched in self.inside:
                touched.is_disturbed = True

    def end(self, passage: Passage) -> None:
        """Be gone, from inside or from the queue."""
        for place in (self.inside, self.waiting):
            if passage in place:
                place.remove(passage)

    def _may_start(self, passage: Passage, now: float) -> bool:
        if not self.inside:
            return passage is self.waiting[0]
        if self.is_mixed or passage.sampling_class != self.inside[0].sampling_class:
            return False
        return not any(self._has_waited(other, now) for other in self._strangers_before(passage))

    def _strangers_before(self, passage: Passage) -> Iterator[Passage]:
        ahead = self.waiting[: self.waiting.index(passage)]
        return (other for other in ahead if other.sampling_class != passage.sampling_class)

    def _has_waited(self, passage: Passage, now: float) -> bool:
        return now - max(passage.asked_at, self._turn_began) >= self._class_wait_s

    def _start(self, passage: Passage, now: float) -> Passage:
        if not self.inside:
            self._turn_began = now
        self.waiting.remove(passage)
        self.inside.append(passage)
        return passage


class Gates:
    """The gates of all engines, by their URL."""

    def __init__(self, *, class_wait_s: float = 30, class_patience_s: float = 300) -> None:
        self._class_wait_s = class_wait_s
        self._class_patience_s = class_patience_s
        self._gates: dict[str, Gate] = {}
        self._admitted: dict[Passage, asyncio.Event] = {}

    def load(self, url: str) -> int:
        """How many calls an engine has, or has waiting."""
        return self._gates[url].load if url in self._gates else 0

    def is_open(self, url: str, sampling_class: SamplingClass) -> bool:
        """Whether a call of this class would start there at once, if the engine minds at all."""
        gate = self._gates.get(url)
        return gate is None or (
            not gate.waiting
            and all(passage.sampling_class == sampling_class for passage in gate.inside)
            and not gate.is_mixed
        )

    @asynccontextmanager
    async def passage(self, engine: EngineRef, body: JsonObject) -> AsyncIterator[Passage]:
        """Be inside an engine's gate for the block, after waiting if need be."""
        gate = self._gates.setdefault(engine.url, Gate(self._class_wait_s))
        # Where classes do not matter all are one, and nobody ever waits.
        asked = class_of(body) if minds_classes(engine) else "plain"
        loop = asyncio.get_running_loop()
        passage, linger_s = Passage(asked, loop.time()), 0.0
        try:
            await self._enter(gate, passage, engine)
            yield passage
        except BaseException as error:
            linger_s = LINGER_S if minds_classes(engine) and passage in gate.inside and may_still_run(error) else 0.0
            raise
        finally:
            if linger_s:
                loop.call_later(linger_s, self._end, gate, passage)
            else:
                self._end(gate, passage)

    async def _enter(self, gate: Gate, passage: Passage, engine: EngineRef) -> None:
        gate.ask(passage)
        admitted = self._admitted[passage] = asyncio.Event()
        try:
            self._let_in(gate)
            async with asyncio.timeout(self._class_patience_s):
                await admitted.wait()
        except TimeoutError:
            self._force(gate, passage, engine)
        finally:
            del self._admitted[passage]

    def _force(self, gate: Gate, passage: Passage, engine: EngineRef) -> None:
        if passage in gate.waiting:
            gate.force(passage, asyncio.get_running_loop().time())
        if passage.is_disturbed:
            metrics.class_disturbed()
            log.warning("calls of two sampling classes share a batch", engine=engine.name, calls=len(gate.inside))

    def _end(self, gate: Gate, passage: Passage) -> None:
        gate.end(passage)
        self._let_in(gate)

    def _let_in(self, gate: Gate) -> None:
        for passage in gate.admit(asyncio.get_running_loop().time()):
            self._admitted[passage].set()


def minds_classes(engine: EngineRef) -> bool:
    """Whether a batch of this engine must hold one class, lest seeds lose their meaning."""
    return engine.facts.kind == "sglang" and bool(engine.facts.deterministic)


def may_still_run(error: BaseException) -> bool:
    """Whether the engine may go on with a call that ended so: not one that it refused or never got."""
    if isinstance(error, EngineFault):
        return error.engine_status is None and error.code != "engine_unreachable"
    return True
