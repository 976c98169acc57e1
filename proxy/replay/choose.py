"""Which engine a recorded call may be asked of again: of the same kind, version and model, with the same weights."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from proxy.engine.pool import Pool
from proxy.model import EngineFacts, EngineRef, JsonObject
from proxy.replay.remake import Take
from proxy.replay.verdict import NO_SUCH_ENGINE

Version: TypeAlias = str | None
"""A weight version; None where nobody told it."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why no engine will do."""

    weights_gone: bool
    reasons: tuple[str, ...]


def open_engines(pool: Pool) -> tuple[EngineRef, ...]:
    """The engines that are well and not being emptied."""
    return tuple(one.ref for one in pool.engines if one.ref and one.problem is None and not one.is_draining)


def choose(
    call: JsonObject, segments: Iterable[Take], engines: Iterable[EngineRef], version_of: Callable[[EngineRef], Version]
) -> EngineRef | Unfit:
    """The engine for a call, the one that drew it before others; all its segments need the weights of now."""
    alike = sorted(
        (engine for engine in engines if is_like(engine.facts, call["engine"])),
        key=lambda engine: engine.name != call["engine"]["name"],
    )
    if not alike:
        return Unfit(weights_gone=False, reasons=(NO_SUCH_ENGINE,))
    recorded = [take.weight_version for take in segments if take.weight_version is not None]
    for engine in alike:
        now = version_of(engine)
        if now is None or all(version == now for version in recorded):
            return engine
    return Unfit(weights_gone=True, reasons=gone(recorded, version_of(alike[0])))


def is_like(facts: EngineFacts, recorded: JsonObject) -> bool:
    """Whether an engine draws as the recorded one did, so far as both tell; in other versions seeds are other noise."""
    if None not in (facts.fingerprint, recorded.get("fingerprint")) and facts.fingerprint != recorded["fingerprint"]:
        return False
    told = (facts.kind, facts.version, facts.model, facts.deterministic)
    return told == tuple(recorded[name] for name in ("kind", "version", "model", "deterministic"))


def gone(recorded: Iterable[Version], now: Version) -> tuple[str, ...]:
    """Both versions, for people."""
    told = dict.fromkeys("not told" if version is None else version for version in recorded)
    return (f"recorded {', '.join(told)}", f"now {'not told' if now is None else now}")
