"""The pool while it runs: engines seen, added, drained, opened again and removed.

What is changed here holds for this process and until it ends; the settings are what the next start goes by.
"""

from dataclasses import asdict
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends

from proxy.control.auth import ADMIN
from proxy.control.edge import ControlRoute, Wired, body_of
from proxy.control.weights import pause_document, weights_document
from proxy.engine.pool import Engine
from proxy.model import JsonObject
from proxy.settings import EngineSettings
from proxy.wiring import Wiring

router = APIRouter(route_class=ControlRoute, dependencies=[ADMIN])
log = structlog.get_logger()


@router.get("/engines")
async def list_engines(wiring: Wired) -> JsonObject:
    """Every engine: what it said of itself, what is wrong with it, and which profiles it cannot honour."""
    in_force = wiring.pauses.in_force
    return {
        "engines": [engine_document(wiring, engine) for engine in wiring.pool.engines],
        "pause": pause_document(in_force) if in_force else None,
    }


@router.post("/engines", status_code=201)
async def add_engine(
    wiring: Wired, settings: Annotated[EngineSettings, Depends(body_of(EngineSettings))]
) -> JsonObject:
    """Take in another engine and look at it; it gets calls as soon as it is well."""
    engine = await wiring.pool.add(settings)
    log.info("engine added", engine=engine.name, url=engine.url)
    return engine_document(wiring, engine)


@router.post("/engines/{name}/drain")
async def drain_engine(name: str, wiring: Wired) -> JsonObject:
    """Give an engine no more calls; those in flight go on, and `calls` tells how many there are."""
    return _draining(wiring, name, is_draining=True)


@router.post("/engines/{name}/open")
async def open_engine(name: str, wiring: Wired) -> JsonObject:
    """Let a drained engine have calls again."""
    return _draining(wiring, name, is_draining=False)


@router.delete("/engines/{name}")
async def remove_engine(name: str, wiring: Wired) -> JsonObject:
    """Forget an engine, at once; calls in flight there end by themselves and are recorded."""
    engine = wiring.pool.remove(name)
    log.info("engine removed", engine=engine.name, url=engine.url, calls=wiring.pool.load(engine))
    return engine_document(wiring, engine)


def _draining(wiring: Wiring, name: str, *, is_draining: bool) -> JsonObject:
    engine = wiring.pool.named(name)
    engine.is_draining = is_draining
    log.info("engine drained" if is_draining else "engine opened", engine=engine.name, calls=wiring.pool.load(engine))
    return engine_document(wiring, engine)


def engine_document(wiring: Wiring, engine: Engine) -> JsonObject:
    """One engine as JSON."""
    facts = engine.ref.facts if engine.ref else None
    findings = [
        {
            "profile": finding.profile,
            "setting": finding.setting,
            "severity": finding.severity,
            "message": finding.message,
            "remedy": finding.remedy,
        }
        for name in wiring.profiles.names()
        for finding in wiring.pool.findings(wiring.profiles.get(name))
        if finding.engine == engine.name
    ]
    return {
        "name": engine.name,
        "url": engine.url,
        "problem": engine.problem,
        "draining": engine.is_draining,
        "weight": engine.settings.weight,
        "calls": wiring.pool.load(engine),
        "kind": facts and facts.kind,
        "version": facts and facts.version,
        "model": facts and facts.model,
        "context_length": facts and facts.context_length,
        "vocabulary": facts and facts.vocabulary,
        "deterministic": facts and facts.deterministic,
        "takes_exact_prompts": facts and facts.takes_exact_prompts,
        "fingerprint": facts and facts.fingerprint,
        "probe": facts and facts.proof and asdict(facts.proof),
        "weights": _weights(wiring, engine),
        "findings": findings,
    }


def _weights(wiring: Wiring, engine: Engine) -> JsonObject:
    noted = wiring.weights.at(engine.url)
    return weights_document(wiring.weights.of(engine.ref) if engine.ref else noted, noted)
