"""The engines: which there are, what is known of them, and which one a rollout goes to.

A rollout stays with one engine for as long as that one is well (rendezvous hashing over the well ones), so that its
prefix cache serves the rollout's later turns.
"""

import asyncio
import contextlib
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from proxy.engine.dialect import Dialect
from proxy.engine.fit import check_fit
from proxy.engine.probe import Probe, is_same_server
from proxy.engine.sglang import SglangDialect
from proxy.engine.upstream import Upstream
from proxy.engine.vllm import VllmDialect
from proxy.errors import EngineFault, EngineUnready, ProfileRefused
from proxy.model import EngineKind, EngineRef, Finding, Profile, RolloutId
from proxy.settings import EngineSettings

DIALECTS: dict[EngineKind, Dialect] = {"vllm": VllmDialect(), "sglang": SglangDialect()}

# How often an engine that is not well, and one that is, are looked at.
UNWELL_LOOK_S = 1.0
WELL_LOOK_S = 10.0

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

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def api_key(self) -> str | None:
        return self.settings.api_key.get_secret_value() if self.settings.api_key else None


class Pool:
    """All engines of one proxy."""

    def __init__(self, engines: Sequence[EngineSettings], upstream: Upstream, *, require_replayable: bool) -> None:
        self.engines = tuple(Engine(f"engine-{index}", settings) for index, settings in enumerate(engines))
        self._upstream = upstream
        self._require_replayable = require_replayable
        self._look_now = asyncio.Event()

    async def look(self) -> None:
        """Look at every engine once."""
        await asyncio.gather(*(self._look_at(engine) for engine in self.engines))

    async def watch(self) -> None:
        """Look at the engines again and again; sooner when one is not well, at once when one is suspected."""
        while True:
            wait = WELL_LOOK_S if all(engine.problem is None for engine in self.engines) else UNWELL_LOOK_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._look_now.wait()
            self._look_now.clear()
            await self.look()

    def choose(self, rollout_id: RolloutId, profile: Profile) -> EngineRef:
        """The engine of a rollout; raises EngineUnready, or ProfileRefused where none may serve the profile."""
        well = [(engine, engine.ref) for engine in self.engines if engine.ref and engine.problem is None]
        if not well:
            raise EngineUnready("; ".join(f"{engine.url}: {engine.problem}" for engine in self.engines))
        fitting = [(engine, ref) for engine, ref in well if not self._refusals(profile, ref)]
        if not fitting:
            raise ProfileRefused(self._refusals(profile, well[0][1])[0].line())
        return max(fitting, key=lambda pair: _share(rollout_id, pair[0]))[1]

    def suspect(self, name: str, problem: str) -> None:
        """A call could not reach this engine: give it none until it was looked at again."""
        for engine in self.engines:
            if engine.name == name:
                _tell_problem(engine, problem)
        self._look_now.set()

    def look_soon(self) -> None:
        """A call broke off: its engine may be gone, so look at once."""
        self._look_now.set()

    def findings(self, profile: Profile) -> tuple[Finding, ...]:
        """What stands between a profile and each engine that is known."""
        refs = [engine.ref for engine in self.engines if engine.ref]
        return tuple(finding for ref in refs for finding in self._check(profile, ref))

    def _refusals(self, profile: Profile, ref: EngineRef) -> list[Finding]:
        return [finding for finding in self._check(profile, ref) if finding.severity == "refuse"]

    def _check(self, profile: Profile, ref: EngineRef) -> tuple[Finding, ...]:
        return check_fit(profile, ref.name, ref.facts, require_replayable=self._require_replayable)

    async def _look_at(self, engine: Engine) -> None:
        """Ask an engine who it is: it may have gone, come back, or become another one at the same address."""
        known = engine.ref.facts if engine.ref else None
        probe = Probe(self._upstream, engine.url, engine.api_key)
        try:
            facts = await probe.facts(engine.settings.kind, known)
        except (EngineUnready, EngineFault) as error:
            # An engine that is paused or busy may leave questions about itself open, and is well all the same.
            if engine.problem is not None or not await probe.alive():
                _tell_problem(engine, error.message)
            return
        told = {"engine": engine.name, "url": engine.url, "kind": facts.kind, "model": facts.model}
        if engine.problem is not None:
            log.info("engine found", **told, version=facts.version, deterministic=facts.deterministic)
        elif known is not None and not is_same_server(facts, known):
            log.warning("engine changed", **told, version=facts.version, deterministic=facts.deterministic)
        engine.ref = EngineRef(engine.name, engine.url, facts, engine.api_key)
        engine.problem = None


def _tell_problem(engine: Engine, problem: str) -> None:
    """Note why an engine gets no calls, and log it once."""
    if problem != engine.problem:
        log.warning("engine not well", engine=engine.name, url=engine.url, problem=problem)
    engine.problem = problem


def _share(rollout_id: RolloutId, engine: Engine) -> float:
    """Weighted rendezvous score: the highest gets the rollout, in proportion to the weights over many rollouts."""
    drawn = int.from_bytes(hashlib.sha256(f"{rollout_id}\n{engine.url}".encode()).digest()[:8], "big")
    return -engine.settings.weight / math.log((drawn + 1) / (2**64 + 1))
