"""Which weights each engine has, as far as the engine or the trainer tells, and the salt that keeps their caches apart.

Both engines go on serving prefixes that old weights computed. So every call carries a cache salt of its engine's
weights: what was cached under other ones is never met again, also where a trainer forgets to flush.
"""

import asyncio
from dataclasses import replace

import structlog

from proxy import clock
from proxy.canonical import digest
from proxy.engine.controls import CONTROLS, reported_version, reports_version
from proxy.engine.upstream import Upstream
from proxy.errors import EngineFault
from proxy.model import EngineRef, EngineRequest, KvFate, Weights
from proxy.record.patience import patiently
from proxy.record.store import Store

SALT_MARK = "rollpin-cache-1"
SALT_DIGITS = 32

log = structlog.get_logger()


class WeightWatch:
    """One process's knowledge, kept equal with the store's."""

    def __init__(self, store: Store, upstream: Upstream, salt_root: str) -> None:
        self._store = store
        self._upstream = upstream
        self._salt_root = salt_root
        self._known: dict[str, Weights] = {}
        self._asking: dict[str, asyncio.Task[str | None]] = {}
        self._queued: dict[str, asyncio.Task[str | None]] = {}
        self._lapsed: dict[str, int] = {}
        self._warned: dict[str, int] = {}
        self.kv_now: KvFate = "unknown"
        """What becomes of the cache of running calls where weights change now; a pause decides it."""

    async def load(self) -> None:
        """Take over what the store knows."""
        for weights in await self._store.weights():
            # What was read may be older than what was noted meanwhile.
            if weights.epoch >= self.at(weights.url).epoch:
                self._keep(weights)

    async def refresh(self) -> None:
        """Learn what other processes noted before this call, where there are any."""
        if self._store.is_shared:
            await self.load()

    def of(self, engine: EngineRef) -> Weights:
        """What is known now, without asking anybody."""
        return self.doubted(self.at(engine.url), engine)

    def at(self, url: str) -> Weights:
        """What was noted last of the engine at an address, whoever answers there now."""
        return self._known.get(url, Weights(url))

    def doubted(self, weights: Weights, engine: EngineRef) -> Weights:
        """Weights that were known, without their version where it is not of the engine as it was seen now."""
        return weights if self._holds(weights, engine) else replace(weights, version=None)

    def meet(self, engine: EngineRef, may_be_new: bool) -> None:  # noqa: FBT001  as the pool tells it
        """An engine was seen. Where nothing tells its processes apart, one that may be new has no weights told of."""
        noted = self.at(engine.url)
        if may_be_new:
            self._lapsed[engine.url] = noted.epoch
        if noted.version is None or self._holds(noted, engine) or self._warned.get(engine.url) == noted.epoch:
            return
        self._warned[engine.url] = noted.epoch
        log.warning(
            "another process may answer than the one whose weights were told: tell them again (POST /weights)",
            engine=engine.name,
            url=engine.url,
            version=noted.version,
        )

    async def look(self, engine: EngineRef) -> Weights:
        """What is true at a moment after this call, where the engine tells; else what is known.

        The version is None where an engine that tells did not answer.
        """
        version = await asyncio.shield(self._asked(engine)) if reports_version(engine.facts) else None
        await self.refresh()
        if not reports_version(engine.facts):
            return self.of(engine)
        known = self.of(engine)
        if version is None:
            return replace(known, version=None)
        return known if version == known.version else await self._note(engine, version)

    async def look_behind(self, engine: EngineRef, patience_s: float) -> Weights:
        """The same behind a reply, which is not to be lost because the store is away: it is waited for.

        Raises StoreDown where it stays away for longer.
        """
        return await patiently(lambda: self.look(engine), patience_s)

    async def change(self, engine: EngineRef, version: str, *, is_flushed: bool, process: str | None = None) -> Weights:
        """The trainer tells of new weights."""
        seen = Weights(engine.url, version, told_by="trainer", is_flushed=is_flushed, kv=self.kv_now, process=process)
        return self._keep(await self._store.change_weights(seen, clock.now()))

    def salted(self, engine: EngineRef, request: EngineRequest) -> EngineRequest:
        """A generation request under the salt of the weights that the engine is known to have."""
        return replace(request, body={**request.body, "cache_salt": self.salt(self.of(engine))})

    def salt(self, weights: Weights) -> str:
        """Another one for each store, engine and epoch; never the same for two sets of weights."""
        told = digest([SALT_MARK, self._salt_root, weights.url, weights.epoch, weights.version])
        return told.removeprefix("sha256:")[:SALT_DIGITS]

    def _holds(self, weights: Weights, engine: EngineRef) -> bool:
        """Whether what was noted is of this engine as it was seen; one that reports its version is asked anyway."""
        if reports_version(engine.facts):
            return True
        is_same_process = weights.process == engine.facts.process
        is_dated = engine.facts.process is not None or weights.epoch > self._lapsed.get(engine.url, 0)
        return weights.told_by == "trainer" and is_same_process and is_dated

    async def _note(self, engine: EngineRef, version: str) -> Weights:
        """An engine has other weights than we knew of."""
        is_first = engine.url not in self._known
        kv = self.kv_now
        seen = Weights(engine.url, version, told_by="engine", is_flushed=is_first, kv="renewed" if is_first else kv)
        kept = self._keep(await self._store.change_weights(seen, clock.now(), only_if_new=True))
        if not is_first:
            log.info("weights changed", engine=engine.name, version=version, epoch=kept.epoch)
        return kept

    def _keep(self, weights: Weights) -> Weights:
        self._known[weights.url] = weights
        return weights

    def _asked(self, engine: EngineRef) -> "asyncio.Task[str | None]":
        """The answer to a question asked from now on: callers that come while one is under way share the next."""
        queued = self._queued.get(engine.url)
        if queued is None:
            queued = asyncio.get_running_loop().create_task(self._ask(engine, self._asking.get(engine.url)))
            self._queued[engine.url] = queued
        return queued

    async def _ask(self, engine: EngineRef, earlier: "asyncio.Task[str | None] | None") -> str | None:
        if earlier is not None:
            await asyncio.wait({earlier})
        self._asking[engine.url] = self._queued.pop(engine.url)
        path = CONTROLS[engine.facts.kind].version_path
        try:
            return reported_version(await self._upstream.question(engine.url, path, api_key=engine.api_key))
        except EngineFault:
            return None
