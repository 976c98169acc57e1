"""The engines: which there are, what is known of them, and which one a rollout goes to.

A rollout stays with one engine for as long as that one is well and within its share of the load (engine/share.py), so
that its prefix cache serves the rollout's later turns. It never moves to another model, tokenizer or template.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

import structlog

from proxy import clock
from proxy.engine.dialect import Dialect
from proxy.engine.fit import check_fit
from proxy.engine.gate import Gates
from proxy.engine.homes import Candidate, Homes
from proxy.engine.lab import Lab
from proxy.engine.look import AnotherKind, Look, is_same_server
from proxy.engine.nemo_rl import NemoRlDialect
from proxy.engine.proof import prove
from proxy.engine.sglang import SglangDialect
from proxy.engine.upstream import Upstream
from proxy.engine.vllm import VllmDialect
from proxy.errors import Conflict, EngineFault, EngineUnready, NotFound, ProfileRefused, StoreDown
from proxy.model import EngineKind, EngineRef, Finding, Profile, Proof, RolloutId
from proxy.settings import EngineSettings

DIALECTS: dict[EngineKind, Dialect] = {"vllm": VllmDialect(), "sglang": SglangDialect(), "nemo_rl": NemoRlDialect()}

# How often an engine that is not well, and one that is, are looked at.
UNWELL_LOOK_S = 1.0
WELL_LOOK_S = 10.0
# A probe takes some fifty tokens; an engine that is paused or swamped may take them later.
PROVE_S = 30.0
# Between looks at an engine that did not answer while a reply waits for one.
DOUBT_PAUSE_S = 0.1
# Between looks for connections that were opened, however many they are.
VET_PAUSE_S = 0.5

log = structlog.get_logger()


@dataclass(slots=True)
class Engine:
    """One engine and its present state."""

    name: str
    settings: EngineSettings
    ref: EngineRef | None = None
    """What is known of it; None until its first probe succeeded."""
    problem: str | None = "not asked yet"
    """Why it gets no calls; None while it is well."""
    is_draining: bool = False
    """Whether it is to get no more calls, however well it is."""
    vetted: int = 0
    """How many connections had been opened to it when the last look began that found out who answers."""
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a look, so that whoever waits for one shares it."""

    @property
    def is_open(self) -> bool:
        """Whether it may be given calls."""
        return self.ref is not None and self.problem is None and not self.is_draining

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def api_key(self) -> str | None:
        return self.settings.api_key.get_secret_value() if self.settings.api_key else None


class Pool:
    """All engines of one proxy."""

    def __init__(
        self,
        engines: Sequence[EngineSettings],
        upstream: Upstream,
        *,
        require_replayable: bool,
        gates: Gates | None = None,
        prove_engines: bool = False,
    ) -> None:
        self._numbers = itertools.count()
        self._upstream = upstream
        self._ever: dict[str, Engine] = {}
        self.engines = tuple(self._new(settings) for settings in engines)
        self._gates = gates or Gates()
        self._require_replayable = require_replayable
        self._prove_engines = prove_engines
        self._proving: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._doubt = asyncio.Event()
        self._homes = Homes(self._gates)
        self.passage: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
        """The door that a probe passes, as calls do."""
        self.weather: Callable[[EngineRef], Awaitable[Hashable]] = _always_fair
        """What has to be the same before and behind the draws of a probe, or they tell nothing of each other."""
        self.on_seen: Callable[[EngineRef, bool], None] = lambda _ref, _may_be_new: None
        """Called behind each look with what was seen, and whether it may have been started anew since the last one."""

    async def add(self, settings: EngineSettings) -> Engine:
        """Take in another engine and look at it. Raises Conflict where its URL is there already."""
        if any(engine.url == settings.url for engine in self.engines):
            raise Conflict(f"an engine at {settings.url} is in the pool", code="engine_exists")
        engine = self._new(settings)
        self.engines = (*self.engines, engine)
        await self._look_at(engine)
        await self._prove(engine)
        return engine

    def remove(self, name: str) -> Engine:
        """Forget an engine; calls in flight there end by themselves. Raises NotFound."""
        gone = self.named(name)
        self.engines = tuple(engine for engine in self.engines if engine is not gone)
        return gone

    def named(self, name: str) -> Engine:
        """The engine of this name. Raises NotFound."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise NotFound(f"no engine is named {name!r}", code="unknown_engine")

    def load(self, engine: Engine) -> int:
        """Calls that an engine has from this process, those that wait for it included."""
        return self._gates.load(engine.url)

    async def look(self) -> None:
        """Look at every engine once."""
        await asyncio.gather(*(self._look_at(engine) for engine in self.engines))

    async def watch(self) -> None:
        """Look at the engines again and again; sooner when one is not well, at once when one is suspected."""
        try:
            while True:
                await self._pause()
                await self.look()
                if self._proving is None or self._proving.done():
                    self._proving = asyncio.create_task(self.prove(), name="prove engines")
        finally:
            if self._proving is not None:
                self._proving.cancel()

    async def vet(self) -> None:
        """Look at an engine as soon as a connection to it was opened, so that few replies have to wait for that."""
        self._upstream.connections.on_opened = self._doubt.set
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            known = [engine for engine in self.engines if engine.ref]
            await asyncio.gather(
                *(self._vet(engine, self._upstream.connections.opened(engine.url)) for engine in known)
            )
            await asyncio.sleep(VET_PAUSE_S)

    async def _pause(self) -> None:
        """Until the next look is due."""
        wait = WELL_LOOK_S if all(engine.problem is None for engine in self.engines) else UNWELL_LOOK_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._look_now.wait()
        self._look_now.clear()

    async def prove(self) -> None:
        """Put every engine that is well to its probe, unless it was before and is still the same."""
        await asyncio.gather(*(self._prove(engine) for engine in self.engines if engine.is_open))

    async def _prove(self, engine: Engine) -> None:
        ref = engine.ref
        if not self._prove_engines or ref is None or ref.facts.proof is not None:
            return
        proof = await self._proof_of(ref)
        if proof is None:
            log.info("an engine's probe has to wait", engine=engine.name)
            return
        told = log.info if proof.is_passed else log.warning
        told("engine probed", engine=engine.name, passed=proof.is_passed, faults=list(proof.faults))
        if engine.ref and is_same_server(engine.ref.facts, ref.facts):
            engine.ref = replace(engine.ref, facts=replace(engine.ref.facts, proof=proof))

    async def _proof_of(self, ref: EngineRef) -> Proof | None:
        """What its draws prove; None where they could not be made, or not all under the same circumstances."""
        try:
            async with asyncio.timeout(PROVE_S), self.passage():
                before = await self.weather(ref)
                proof = await prove(Lab(self._upstream, ref, DIALECTS[ref.facts.kind]))
                await self.confirm(ref, self._upstream.connections.opened(ref.url), PROVE_S)
                return proof if await self.weather(ref) == before else None
        except (TimeoutError, EngineFault, StoreDown):
            return None

    def choose(self, rollout_id: RolloutId, profile: Profile) -> EngineRef:
        """The engine of a rollout's next call.

        Raises EngineUnready where none is open to it, ProfileRefused where none may serve the profile.
        """
        return self._homes.choose(rollout_id, profile, self._fitting(profile))

    def choose_instead(
        self, rollout_id: RolloutId, profile: Profile, unreached: Sequence[EngineRef]
    ) -> EngineRef | None:
        """Another engine for a call that the last of these could not be given; None where there is none like it."""
        try:
            fitting = self._fitting(profile)
        except (EngineUnready, ProfileRefused):
            return None
        return self._homes.choose_instead(rollout_id, profile, fitting, unreached)

    async def instead_of_lost(self, rollout_id: RolloutId, profile: Profile, ref: EngineRef) -> EngineRef | None:
        """Another engine where this one no longer answers; None where it does, or where there is none like it."""
        if await Look(self._upstream, ref.url, ref.api_key).alive():
            return None
        self.suspect(ref.name, "does not answer")
        return self.choose_instead(rollout_id, profile, (ref,))

    def _fitting(self, profile: Profile) -> list[Candidate]:
        """The open engines that may serve a profile, of its model where that tells."""
        opened = self._open()
        if not opened:
            raise EngineUnready("; ".join(_standing(engine) for engine in self.engines) or "the pool is empty")
        fitting = [one for one in opened if not self._refusals(profile, one.ref)]
        if not fitting:
            raise ProfileRefused(self._refusals(profile, opened[0].ref)[0].line())
        return [one for one in fitting if one.ref.facts.model == profile.model] or fitting

    def _open(self) -> list[Candidate]:
        return [
            Candidate(engine.ref, engine.settings.weight) for engine in self.engines if engine.is_open and engine.ref
        ]

    def suspect(self, name: str, problem: str) -> None:
        """A call could not reach this engine: give it none until it was looked at again."""
        for engine in self.engines:
            if engine.name == name:
                _tell_problem(engine, problem)
        self._look_now.set()

    def look_soon(self) -> None:
        """A call broke off: its engine may be gone, so look at once."""
        self._look_now.set()

    async def confirm(self, ref: EngineRef, opened: int, patience_s: float) -> EngineRef:
        """What is known of an engine once it is certain that its reply came from the server that its plan knew.

        `opened` is how many connections had been opened to it when the reply began. It is certain where they were all
        opened before a look that still found the same server: so it costs nothing until another one is opened, and
        whatever is opened later is no matter. Raises EngineFault.
        """
        engine, give_up_at = self._ever[ref.name], clock.ticks() + patience_s
        while engine.vetted < opened:
            await self._vet(engine, opened)
            if engine.vetted >= opened:
                break
            if clock.ticks() + DOUBT_PAUSE_S > give_up_at:
                raise _unconfirmed("it could not be asked who it is since a connection to it was opened")
            await asyncio.sleep(DOUBT_PAUSE_S)
        if engine.ref is None or not is_same_server(engine.ref.facts, ref.facts):
            raise _unconfirmed("another one answers at its address now")
        return engine.ref

    async def _vet(self, engine: Engine, opened: int) -> None:
        """Look at an engine, unless somebody else did since so many connections were opened to it."""
        async with engine.looking:
            if engine.vetted < opened:
                async with self._upstream.apart() as apart:
                    await self._look_over(apart, engine)

    def findings(self, profile: Profile) -> tuple[Finding, ...]:
        """What stands between a profile and each engine that is known."""
        refs = [engine.ref for engine in self.engines if engine.ref]
        return tuple(finding for ref in refs for finding in self._check(profile, ref))

    def _new(self, settings: EngineSettings) -> Engine:
        engine = Engine(f"engine-{next(self._numbers)}", settings)
        self._ever[engine.name] = engine
        return engine

    def _refusals(self, profile: Profile, ref: EngineRef) -> list[Finding]:
        return [finding for finding in self._check(profile, ref) if finding.severity == "refuse"]

    def _check(self, profile: Profile, ref: EngineRef) -> tuple[Finding, ...]:
        found = check_fit(profile, ref.name, ref.facts, require_replayable=self._require_replayable)
        models = {one.ref.facts.model for one in self._open()} | {ref.facts.model}
        return found if profile.model or len(models) == 1 else (*found, several_models(profile, ref, models))

    async def _look_at(self, engine: Engine) -> None:
        """Ask an engine who it is: it may have gone, come back, or become another one at the same address."""
        async with engine.looking, self._upstream.apart() as apart:
            await self._look_over(apart, engine)

    async def _look_over(self, upstream: Upstream, engine: Engine) -> None:
        """The same over connections that lead to whoever answers now."""
        known, opened = engine.ref.facts if engine.ref else None, self._upstream.connections.opened(engine.url)
        look = Look(upstream, engine.url, engine.api_key)
        try:
            facts = await look.facts(engine.settings.kind, known)
        except AnotherKind as error:
            self._upstream.connections.leave()
            _tell_problem(engine, error.message)
            engine.ref = None
            return
        except (EngineUnready, EngineFault) as error:
            # An engine that is paused or busy may leave questions about itself open, and is well all the same.
            if engine.problem is not None or not await look.alive():
                _tell_problem(engine, error.message)
            return
        if engine.ref and engine.problem is None and is_same_server(facts, engine.ref.facts):
            # Its probe may have ended during this look. One that was away may have been started anew.
            facts = replace(facts, proof=engine.ref.facts.proof)
        told = {"engine": engine.name, "url": engine.url, "kind": facts.kind, "model": facts.model}
        if engine.problem is not None:
            log.info("engine found", **told, version=facts.version, deterministic=facts.deterministic)
        elif known is not None and not is_same_server(facts, known):
            log.warning("engine changed", **told, version=facts.version, deterministic=facts.deterministic)
        if known is not None and not is_same_server(facts, known):
            # The old one may still be there, and be answering over connections that were opened to it.
            self._upstream.connections.leave()
        may_be_new = engine.problem is not None or known is None or not is_same_server(facts, known)
        engine.vetted = opened
        engine.ref = EngineRef(engine.name, engine.url, facts, engine.api_key)
        engine.problem = None
        self.on_seen(engine.ref, may_be_new)


async def _always_fair(_ref: EngineRef) -> None:
    """Nothing changes where nobody tells of it."""


def _unconfirmed(why: str) -> EngineFault:
    message = f"the reply may be another engine's than the one that is known: {why}"
    return EngineFault("engine_unconfirmed", 503, message, retry_after_s=1)


def _tell_problem(engine: Engine, problem: str) -> None:
    """Note why an engine gets no calls, and log it once."""
    if problem != engine.problem:
        log.warning(
            "engine not well, and given no calls until it is", engine=engine.name, url=engine.url, problem=problem
        )
    engine.problem = problem


def several_models(profile: Profile, ref: EngineRef, models: Collection[str]) -> Finding:
    """Without a name the samples of a group would come from several models, and look right."""
    message = f"the engines serve several models ({', '.join(sorted(models))}) and the profile names none"
    return Finding(
        profile.name, ref.name, "model", "refuse", message, f"set profiles.{profile.name}.model to one of them"
    )


def _standing(engine: Engine) -> str:
    return f"{engine.url}: {engine.problem or 'is being drained'}"
