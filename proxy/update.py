"""New weights under running rollouts, step by step: pause, the trainer's update, its word of it, resume.

The store is where replicas meet: a pause is written down first, every replica shuts its door and says so, and only then
are the engines told. They are resumed before the door opens, and only by the one who asks for it.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from proxy import clock
from proxy.engine.answer import Answer
from proxy.engine.controls import CONTROLS, Controls, reported_version, reports_version
from proxy.engine.look import Look
from proxy.errors import (
    BadAsk,
    Conflict,
    EngineFault,
    EngineNotControllable,
    EngineUnready,
    NotFound,
    ProxyError,
    StoreDown,
)
from proxy.model import EngineRef, EngineRequest, Pause, PauseMode, Weights
from proxy.wiring import Wiring

# How often a pause asks whether every replica has shut its door, and a replica whether there is a pause.
LOOK_EVERY_S = 0.25
# Replies that an engine ended for a pause are read to their end before the pause is said to hold.
SETTLE_S = 2.0
ENDS_CALLS: frozenset[PauseMode] = frozenset({"abort", "wait"})
LONGEST_ANSWER = 300

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Told:
    """What became of new weights on one engine."""

    engine: EngineRef
    weights: Weights
    reported: str | None
    """The version that the engine itself tells; None where it tells none."""


async def pause(mode: PauseMode, lease_s: float, wiring: Wiring) -> Pause:
    """Hold back calls on every replica, then pause every engine; returns when all of that has happened.

    While a pause is in force it renews the lease. Raises BadAsk for a mode that an engine does not know, Conflict
    where a pause of another mode is in force or this one was resumed before it held, EngineFault or
    EngineNotControllable where an engine did not pause: then none stays paused.
    """
    engines = engines_of(wiring)
    _check_mode(mode, engines)
    now = clock.now()
    asked = Pause(clock.new_id("pa"), mode, now, now + lease_s)
    in_force = await wiring.store.begin_pause(asked)
    await obey(in_force, wiring)
    await _all_doors_shut(in_force, wiring)
    try:
        await _each(engines, (_order(engine, _controls(engine).pause(mode), wiring, lease_s) for engine in engines))
    except (EngineFault, EngineNotControllable):
        if in_force.pause_id == asked.pause_id:
            await _give_up(in_force, engines, wiring)
        raise
    if mode in ENDS_CALLS:
        await wiring.pauses.emptied(SETTLE_S)
    if _name(await wiring.store.pause()) != in_force.pause_id:
        await _as_the_store_has_it(engines, wiring)
        raise Conflict("the engines were resumed before the pause held", code="resumed_meanwhile")
    log.info("engines paused", mode=mode, lease_s=lease_s, engines=[engine.name for engine in engines])
    return in_force


async def resume(wiring: Wiring) -> tuple[EngineRef, ...]:
    """Note what weights the engines have now, resume them, and let calls through. Raises EngineFault; then none go.

    Raises Conflict where somebody paused them meanwhile: then they are paused.
    """
    engines, seen = engines_of(wiring), await wiring.store.pause()
    unwell = [engine.ref for engine in wiring.pool.engines if engine.ref and engine.problem is not None]
    await asyncio.gather(
        *(_order(engine, _controls(engine).resume, wiring, None) for engine in unwell), return_exceptions=True
    )
    for engine in engines:
        await _settle_weights(engine, wiring)
    await _each(engines, (_order(engine, _controls(engine).resume, wiring, None) for engine in engines))
    if not await wiring.store.end_pause(seen, clock.now()):
        await _as_the_store_has_it(engines, wiring)
        raise Conflict("the engines were paused again while they were being resumed", code="paused_meanwhile")
    await open_door(seen, wiring)
    log.info("engines resumed", engines=[engine.name for engine in engines])
    return engines


async def new_weights(version: str, names: Sequence[str] | None, wiring: Wiring) -> tuple[Told, ...]:
    """The trainer says that engines have new weights: check what they report, empty their prefix caches, note it.

    Raises NotFound for a name that no engine has, Conflict where one reports another version: then nothing is noted.
    """
    engines = named(names, engines_of(wiring))
    reported = [await _version_of(engine, wiring) for engine in engines]
    others = [
        f"{engine.name} reports {told!r}"
        for engine, told in zip(engines, reported, strict=True)
        if reports_version(engine.facts) and told != version
    ]
    if others:
        raise Conflict(f"these weights are not {version!r}: {', '.join(others)}", code="weights_mismatch")
    processes = [await _process_of(engine, wiring) for engine in engines]
    told = [
        Told(
            engine,
            await wiring.weights.change(engine, version, is_flushed=await _flush(engine, wiring), process=process),
            version_now,
        )
        for engine, version_now, process in zip(engines, reported, processes, strict=True)
    ]
    if any(process != engine.facts.process for engine, process in zip(engines, processes, strict=True)):
        await wiring.pool.look()
    return tuple(told)


async def obey(in_force: Pause, wiring: Wiring) -> None:
    """Shut this process's door, and say so."""
    wiring.pauses.begin(in_force)
    kinds = {engine.ref.facts.kind for engine in wiring.pool.engines if engine.ref}
    is_kept = any(in_force.mode in CONTROLS[kind].keeps_kv for kind in kinds)
    wiring.weights.kv_now = "kept" if is_kept else "renewed"
    await wiring.store.acknowledge(wiring.owner, in_force.pause_id)


async def open_door(ended: Pause | None, wiring: Wiring) -> None:
    """Let calls through that a pause held, knowing what was noted meanwhile, also by others."""
    await wiring.weights.load()
    if _name(wiring.pauses.in_force) == _name(ended):
        wiring.weights.kv_now = "unknown"
        wiring.pauses.end()


async def watch_pauses(wiring: Wiring) -> None:
    """Follow what other replicas were told: shut and open this one's door with theirs."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            if wiring.pauses.is_apart or not await wiring.presence.is_counted():
                await stay_present(wiring)
            await _follow(wiring)
        except StoreDown as error:
            log.warning("pauses could not be looked at", reason=error.message)


async def stay_present(wiring: Wiring) -> None:
    """Give a sign of life. A process that is new, or was taken for dead, reads the pause in force before it goes on.

    Raises StoreDown; one that is apart then stays so.
    """
    async with wiring.presence.joining:
        await wiring.presence.sign()
        await wiring.presence.compare_clocks()
        if wiring.pauses.is_apart:
            await wiring.presence.join()
            # One that was told of the pause before has not been counted as told.
            await _follow(wiring, anew=True)
            wiring.pauses.rejoin()


async def _follow(wiring: Wiring, *, anew: bool = False) -> None:
    """Shut and open the door as the store has it."""
    # In this order: what is read must not be older than what it is compared with.
    held = wiring.pauses.in_force
    in_force = await wiring.store.pause()
    if in_force is not None and (anew or in_force != held):
        await obey(in_force, wiring)
    elif in_force is None and held is not None and held == wiring.pauses.in_force:
        await open_door(held, wiring)


def engines_of(wiring: Wiring) -> tuple[EngineRef, ...]:
    """Every engine that is well, drained ones too. Raises EngineUnready where there is none."""
    engines = tuple(engine.ref for engine in wiring.pool.engines if engine.ref and engine.problem is None)
    if not engines:
        raise EngineUnready("no engine has been reached yet")
    return engines


def named(names: Sequence[str] | None, engines: Sequence[EngineRef]) -> tuple[EngineRef, ...]:
    """The engines of these names or URLs, all of them where none is named. Raises NotFound."""
    if names is None:
        return tuple(engines)
    known = {name for engine in engines for name in (engine.name, engine.url)}
    if unknown := [name for name in names if name not in known]:
        raise NotFound(f"no engine is called {', '.join(unknown)}", code="unknown_engine")
    return tuple(engine for engine in engines if engine.name in names or engine.url in names)


def _check_mode(mode: PauseMode, engines: Sequence[EngineRef]) -> None:
    for engine in engines:
        known = _controls(engine).modes
        if mode not in known:
            message = f"{engine.name} is {engine.facts.kind} and pauses with {', '.join(known)}; not with {mode}"
            raise BadAsk(message, code="pause_mode_unknown", param="mode")


async def _all_doors_shut(in_force: Pause, wiring: Wiring) -> None:
    """Wait for every live replica; one that dies stops counting when its sign of life runs out."""
    while silent := await wiring.store.silent(in_force.pause_id, clock.now()):
        log.debug("a pause waits for replicas", replicas=silent)
        await asyncio.sleep(LOOK_EVERY_S)


async def _give_up(in_force: Pause, engines: Sequence[EngineRef], wiring: Wiring) -> None:
    """A pause that one engine did not obey is no pause: let the others go on."""
    orders = (_order(engine, _controls(engine).resume, wiring, None) for engine in engines)
    for result in await asyncio.gather(*orders, return_exceptions=True):
        if isinstance(result, ProxyError):
            log.warning("an engine was not resumed", reason=result.message)
    if await wiring.store.end_pause(in_force, clock.now()):
        await open_door(in_force, wiring)
    else:
        await _as_the_store_has_it(engines, wiring)


async def _as_the_store_has_it(engines: Sequence[EngineRef], wiring: Wiring) -> None:
    """Pause or resume engines that two trainers have told different things, until it is what is in force.

    Raises EngineFault or EngineNotControllable.
    """
    while True:
        held = await wiring.store.pause()
        log.warning("two trainers pause and resume at once", in_force=_name(held))
        orders = [_controls(one).pause(held.mode) if held else _controls(one).resume for one in engines]
        await _each(engines, (_order(one, order, wiring, None) for one, order in zip(engines, orders, strict=True)))
        if _name(await wiring.store.pause()) == _name(held):
            return


def _name(pause: Pause | None) -> str | None:
    return pause.pause_id if pause else None


async def _settle_weights(engine: EngineRef, wiring: Wiring) -> None:
    """Weights that the engine alone tells of are noted as if the trainer had told."""
    before = wiring.weights.of(engine)
    if not reports_version(engine.facts):
        return
    version = await _version_of(engine, wiring)
    if version is not None and version != before.version:
        await wiring.weights.change(engine, version, is_flushed=await _flush(engine, wiring))


async def _flush(engine: EngineRef, wiring: Wiring) -> bool:
    """Whether the engine emptied its prefix cache; it may refuse while calls hold on to it."""
    controls = _controls(engine)
    try:
        answer = await _ask(engine, controls.flush, wiring, None)
    except EngineFault:
        return False
    return controls.has_flushed(answer)


async def _version_of(engine: EngineRef, wiring: Wiring) -> str | None:
    path = _controls(engine).version_path
    return reported_version(await wiring.upstream.question(engine.url, path, api_key=engine.api_key))


async def _process_of(engine: EngineRef, wiring: Wiring) -> str | None:
    """Whom the trainer's word is about, where the engine does not report its weights itself. Raises ProxyError."""
    if reports_version(engine.facts):
        return None
    async with wiring.upstream.apart() as apart:
        return await Look(apart, engine.url, engine.api_key).process()


async def _order(engine: EngineRef, order: EngineRequest, wiring: Wiring, patience_s: float | None) -> None:
    """Have an engine do something. Raises EngineFault where it cannot be reached, EngineNotControllable elsewhere."""
    answer = await _ask(engine, order, wiring, patience_s)
    if answer.status == 404:
        message = f"{engine.name} has no {order.path.partition('?')[0]}: start vLLM with VLLM_SERVER_DEV_MODE=1"
        raise EngineNotControllable(message)
    if answer.status != 200:
        message = f"{engine.name} answered {answer.status} to {order.path}: {answer.text[:LONGEST_ANSWER]}"
        raise EngineNotControllable(message)


async def _ask(engine: EngineRef, order: EngineRequest, wiring: Wiring, patience_s: float | None) -> Answer:
    return await wiring.upstream.question(
        engine.url, order.path, order.body, api_key=engine.api_key, patience_s=patience_s
    )


async def _each(engines: Sequence[EngineRef], orders: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once, each to its end; raises the first fault."""
    results = await asyncio.gather(*orders, return_exceptions=True)
    for engine, result in zip(engines, results, strict=True):
        if isinstance(result, ProxyError):
            log.warning("an engine did not obey", engine=engine.name, reason=result.message)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _controls(engine: EngineRef) -> Controls:
    return CONTROLS[engine.facts.kind]
