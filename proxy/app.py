"""The process: start and stop, the work beside the requests, and an end that leaves nothing unrecorded."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp

from proxy import clock
from proxy.errors import ProxyError, StoreDown
from proxy.greeting import greet
from proxy.headers import BoundedHttp, HeaderLimit
from proxy.log import start_log
from proxy.planes import listen
from proxy.replay.samples import watch_samples
from proxy.screen import say
from proxy.server import Server
from proxy.settings import Settings
from proxy.update import stay_present, watch_pauses
from proxy.wiring import Wiring, wire

# Leases are renewed this many times within their length, so that one lost renewal is no death.
RENEWALS_PER_LEASE = 4
# How soon a profile that another process was told of holds here.
PROFILES_EVERY_S = 1.0
# A store that is away keeps the end waiting for no longer, for notes on deliveries that nobody else waits for.
LAST_NOTES_S = 2.0
# Exit status of a start that the settings, the store or an engine forbid.
CANNOT_START = 2
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger()


@contextlib.asynccontextmanager
async def running_parts(wiring: Wiring) -> AsyncIterator[None]:
    """A first look at the engines, the work beside the requests, and an orderly end.

    Every call in flight is recorded before the store closes.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        await wiring.pool.look()
        await wiring.pool.prove()
        tasks.append(asyncio.create_task(wiring.pool.watch(), name="watch engines"))
        tasks.append(asyncio.create_task(wiring.pool.vet(), name="vet engines"))
        await stay_present(wiring)
        tasks.append(asyncio.create_task(_keep_leases(wiring), name="keep leases"))
        tasks.append(asyncio.create_task(watch_samples(wiring), name="replay and rescore samples"))
        tasks.append(asyncio.create_task(watch_pauses(wiring), name="watch pauses"))
        if wiring.store.is_shared:
            tasks.append(asyncio.create_task(_watch_profiles(wiring), name="watch profiles"))
        yield
    finally:
        timeouts = wiring.settings.timeouts
        await wiring.turns.drain(timeouts.drain_s, timeouts.commit_wait_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await wiring.upstream.aclose()
        await wiring.deliveries.settle(LAST_NOTES_S)
        with contextlib.suppress(StoreDown):
            await wiring.store.leave(wiring.owner)
        await wiring.store.close()
        if wiring.cassette:
            await wiring.cassette.close()


async def _keep_leases(wiring: Wiring) -> None:
    """Renew the leases of running calls; account for those of dead processes; close rollouts whose time is over."""
    lease_s = wiring.settings.timeouts.lease_s
    while True:
        await asyncio.sleep(lease_s / RENEWALS_PER_LEASE)
        now = clock.now()
        try:
            await stay_present(wiring)
            await wiring.store.renew(wiring.owner, wiring.turns.call_ids(), now + lease_s)
            dead = await wiring.store.sweep(now)
            expired = await wiring.store.expire_rollouts(now)
        except StoreDown as error:
            log.warning("leases could not be renewed", reason=error.message)
            continue
        if dead or expired:
            log.info("accounts settled", dead_reservations=dead, expired_rollouts=expired)


async def _watch_profiles(wiring: Wiring) -> None:
    """Put in force what other processes were told."""
    while True:
        await asyncio.sleep(PROFILES_EVERY_S)
        before = wiring.profiles.changes
        try:
            stored = await wiring.store.stored_profiles()
            # What was read may be older than what was changed here meanwhile.
            if wiring.profiles.changes == before:
                wiring.profiles.restore(stored)
        except StoreDown as error:
            log.warning("profiles could not be looked at", reason=error.message)


def serve(settings: Settings) -> int:
    """Run a proxy until SIGTERM or Ctrl-C; the exit status."""
    start_log(settings.log_format, settings.log_level, secrets=settings.secrets())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    """Until the sockets listen, a signal ends the start itself: engines may take long to answer."""
    starting, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert starting is not None  # noqa: S101  a coroutine that runs has a task
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, starting.cancel)
    try:
        return await run_proxy(settings, _started)
    except asyncio.CancelledError:
        log.info("stopped before it had started")
        return 0


async def run_proxy(settings: Settings, ready: Callable[[Server, Wiring], None]) -> int:
    """Wire, listen and serve until `server.stop()`; `ready` is called once the sockets listen."""
    try:
        wiring = await wire(settings)
    except (ProxyError, ValueError, OSError) as error:
        return cannot_start(settings, str(error))
    async with running_parts(wiring):
        refusals = _refusals(wiring)
        if refusals:
            return cannot_start(settings, "an engine cannot honour a profile", *refusals)
        try:
            sockets, app = listen(wiring)
        except OSError as error:
            return cannot_start(settings, str(error))
        server = Server(_config(HeaderLimit(app, settings.limits.body_bytes), settings), wiring.stopping)
        ready(server, wiring)
        await server.serve(sockets=sockets)
    log.info("stopped")
    return 0


def cannot_start(settings: Settings, reason: str, *findings: str) -> int:
    """Say why, in the log where that is JSON and to people in plain lines, and return the exit status."""
    if settings.log_format == "json":
        log.critical("cannot start", reason=reason, **({"findings": findings} if findings else {}))
    else:
        say("\n".join((f"cannot start: {reason}", *findings)))
    return CANNOT_START


def _refusals(wiring: Wiring) -> list[str]:
    """What keeps the proxy from starting, a line for each; what profiles meet on the engines besides is logged."""
    findings = wiring.startup_findings()
    for finding in findings:
        if finding.severity == "warn":
            log.warning("profile check", severity=finding.severity, finding=finding.line())
    return [finding.line() for finding in findings if finding.severity == "refuse"]


def _config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=int(settings.timeouts.drain_s + settings.timeouts.commit_wait_s) + 2,
    )


def _started(server: Server, wiring: Wiring) -> None:
    stop_on_signals(server, wiring)
    greet(wiring)


def stop_on_signals(server: Server, wiring: Wiring) -> None:
    """At the first signal take no more requests, and let those in flight end, or be told that they cannot."""
    loop, timeouts = asyncio.get_running_loop(), wiring.settings.timeouts
    draining: list[asyncio.Task[None]] = []

    def stop() -> None:
        server.stop()
        if not draining:
            log.info("stopping: calls in flight may end", calls=len(wiring.turns.call_ids()), drain_s=timeouts.drain_s)
            draining.append(loop.create_task(wiring.turns.drain(timeouts.drain_s, timeouts.commit_wait_s)))

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
