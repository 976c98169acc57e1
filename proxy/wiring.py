"""The parts of one running proxy, put together once."""

import asyncio
import itertools
from dataclasses import dataclass, field

import structlog

from proxy import clock
from proxy.cassette.stage import ScratchStore, Shelf
from proxy.cassette.tape import Tape, open_tape
from proxy.deliveries import Deliveries
from proxy.engine.gate import Gates
from proxy.engine.pool import Pool
from proxy.engine.upstream import Upstream
from proxy.keys import Keys, load_keys
from proxy.model import CallId, EngineRef, Finding
from proxy.pauses import Pauses
from proxy.presence import Presence
from proxy.profiles import Profiles
from proxy.record.opening import store_at
from proxy.record.store import Store
from proxy.refusals import Refusals
from proxy.request.templates import Templates
from proxy.running import Turns
from proxy.settings import Settings
from proxy.weights import WeightWatch

# Sampled calls that may wait; beyond it they are left out.
MOST_SAMPLES = 256

log = structlog.get_logger()


@dataclass(slots=True)
class Wiring:
    """What a turn and the control plane work with."""

    settings: Settings
    keys: Keys
    store: Store
    profiles: Profiles
    upstream: Upstream
    pool: Pool
    turns: Turns
    templates: Templates
    run_seed: int
    owner: str
    """Id of this process: reservations carry it."""
    data_port: int
    """The port that harnesses reach, known once it is bound."""
    pauses: Pauses
    presence: Presence
    deliveries: Deliveries
    weights: WeightWatch
    control_at: str = ""
    """URL of the control plane, or the path of its socket, known once it is bound."""
    refusals: Refusals = field(default_factory=Refusals)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the proxy takes no more requests: replies that would never end by themselves end now."""
    aside: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Room at the engines for work beside the calls: replays and rescores."""
    samples: asyncio.Queue[tuple[str, CallId]] = field(default_factory=lambda: asyncio.Queue(MOST_SAMPLES))
    """Recorded calls that are to be replayed or rescored beside the running ones, with the purpose."""
    cassette: Tape | None = None
    """The recorded run that is served back; then no engine is asked."""

    def startup_findings(self) -> tuple[Finding, ...]:
        """What every profile meets on the engines that have answered."""
        return tuple(
            itertools.chain.from_iterable(self.pool.findings(self.profiles.get(name)) for name in self.profiles.names())
        )


async def wire(settings: Settings) -> Wiring:
    """Open the store and put the parts together; no engine is asked yet.

    Raises ValueError and OSError for what the settings got wrong, StoreInUse for a store that is taken.
    """
    keys, minted = load_keys(settings)
    if minted:
        log.warning("secrets were minted", file=str(settings.secrets_file.resolve()))
    owner = clock.new_id("px")
    cassette = await open_tape(settings.cassette, settings.store) if settings.cassette else None
    store = ScratchStore() if cassette else store_at(settings.store, settings.durability)
    await store.open()
    if store.is_shared:
        await warn_of_other_keys(keys, store)
    profiles = Profiles(settings.profiles)
    for name in profiles.restore(await store.stored_profiles()):
        log.warning("the settings of a profile are newer than its run-time change and win", profile=name)
    limits, timeouts = settings.limits, settings.timeouts
    gates = Gates(class_wait_s=timeouts.class_wait_s, class_patience_s=timeouts.class_patience_s)
    upstream = Upstream(
        connect_s=timeouts.connect_s,
        silence_s=timeouts.silence_s,
        probe_s=timeouts.probe_s,
        reply_bytes=limits.reply_bytes,
        gates=gates,
    )
    pauses, weights = Pauses(timeouts.pause_wait_s), WeightWatch(store, upstream, await store.keep(*salt_root()))
    await weights.load()
    if pause := await store.pause():
        pauses.begin(pause)
    pool = (
        Shelf(cassette.engine, upstream)
        if cassette
        else Pool(
            settings.engines,
            upstream,
            require_replayable=settings.require_replayable,
            gates=gates,
            prove_engines=settings.prove_engines,
        )
    )

    async def weather(engine: EngineRef) -> tuple[int, int]:
        return pauses.begun, (await weights.look(engine)).epoch

    pool.on_seen, pool.passage, pool.weather = weights.meet, pauses.passage, weather
    return Wiring(
        settings=settings,
        keys=keys,
        store=store,
        profiles=profiles,
        upstream=upstream,
        pool=pool,
        turns=Turns(at_once=limits.calls_at_once, at_once_per_rollout=limits.calls_at_once_per_rollout),
        templates=Templates(),
        run_seed=await settle_run_seed(settings, store),
        owner=owner,
        data_port=settings.port,
        pauses=pauses,
        deliveries=Deliveries(store),
        presence=Presence(store, owner, timeouts.lease_s, pauses),
        weights=weights,
        aside=asyncio.Semaphore(settings.replays_at_once),
        cassette=cassette,
    )


async def warn_of_other_keys(keys: Keys, store: Store) -> None:
    """Proxies that sign with different secrets refuse one another's rollouts, which would look like wrong keys."""
    if await store.keep("key_mark", keys.mark()) != keys.mark():
        log.warning(
            "key_secret is not that of the first proxy on this store: keys that others hand out are refused here"
        )


def salt_root() -> tuple[str, str]:
    """What sets the cache salts of this store apart from those of every other; under its name in the store."""
    return "salt_root", clock.new_token("salt")


async def settle_run_seed(settings: Settings, store: Store) -> int:
    """The setting's run seed, else the one that the store keeps, drawn at its first use."""
    if settings.run_seed is not None:
        return settings.run_seed
    return int(await store.keep("run_seed", str(clock.new_run_seed())))
