"""All checks of all engines, as data: what `rollpin check` shows and what `--json` prints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from proxy.check.bench import Bench, Seen, Verdict, in_words
from proxy.check.checks import CHECKS, Check
from proxy.engine.fit import check_fit
from proxy.engine.gate import Gates
from proxy.engine.lab import Lab
from proxy.engine.look import Look
from proxy.engine.pool import DIALECTS
from proxy.engine.proof import draw_all, judge
from proxy.engine.upstream import Upstream
from proxy.errors import EngineFault, EngineUnready
from proxy.model import EngineRef, Finding, JsonObject
from proxy.settings import EngineSettings, Settings

Ending = Verdict | str
ORDER: tuple[Verdict, ...] = ("pass", "skip", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Line:
    """One check of one engine, answered."""

    check: Check
    seen: Seen
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """One engine, checked or not."""

    url: str
    engine: EngineRef | None = None
    lines: tuple[Line, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What stands between it and each profile."""
    problem: str | None = None
    """Why it could not be checked."""

    @property
    def verdict(self) -> Verdict | None:
        """The worst of all; None where it could not be checked."""
        if self.problem is not None:
            return None
        found: list[Verdict] = [line.seen.verdict for line in self.lines]
        found += ["fail" if finding.severity == "refuse" else "warn" for finding in self.findings]
        return max(found, key=ORDER.index)


async def check_all(settings: Settings) -> tuple[Report, ...]:
    """Every engine of the settings, one after another: two at once could be one machine."""
    upstream, beside = _upstream(settings), _upstream(settings)
    try:
        return tuple([await check_engine(engine, settings, upstream, beside) for engine in settings.engines])
    finally:
        await upstream.aclose()
        await beside.aclose()


async def check_engine(engine: EngineSettings, settings: Settings, upstream: Upstream, beside: Upstream) -> Report:
    """Every check of one engine; what keeps it from being checked is its problem."""
    profiles = tuple(profile.named(name) for name, profile in settings.profiles.items())
    key = engine.api_key.get_secret_value() if engine.api_key else None
    look = Look(upstream, engine.url, key)
    try:
        facts = await look.facts(engine.kind)
        ref = EngineRef(engine.url, engine.url, facts, key)
        dialect = DIALECTS[facts.kind]
        drawn = await draw_all(Lab(upstream, ref, dialect))
    except EngineUnready as unready:
        return Report(engine.url, problem=unready.message)
    except EngineFault as fault:
        return Report(engine.url, problem=in_words(fault))
    proof = judge(drawn)
    if not facts.honours_seeds:
        proof = replace(proof, faults=("it says itself that it ignores seeds",), draws_by_position=None)
    ref = replace(ref, facts=replace(facts, proof=proof))
    bench = Bench(
        Lab(upstream, ref, dialect),
        Lab(beside, ref, dialect),
        upstream,
        profiles,
        settings.require_replayable,
        settings.later_system,
        look,
        drawn,
        proof,
    )
    lines = tuple([await answer(check, bench) for check in CHECKS])
    return Report(engine.url, ref, lines, _findings(bench))


async def answer(check: Check, bench: Bench) -> Line:
    """One check, made; a fault of the engine in it is what was seen, and a refusal leaves the question open."""
    try:
        seen = await check.seen_by(bench)
    except EngineFault as fault:
        seen = Seen("skip" if fault.code == "engine_refused" else "fail", in_words(fault), "look at the engine's log")
    return Line(check, seen, seen.remedy or check.remedy(bench.facts.kind))


def document(reports: Sequence[Report]) -> JsonObject:
    """As JSON."""
    return {"status": status_of(reports), "engines": [_engine_document(report) for report in reports]}


def status_of(reports: Sequence[Report]) -> int:
    """0 where every check passed or warns, 1 where one fails, 2 where an engine could not be checked."""
    verdicts = {report.verdict for report in reports}
    return 2 if None in verdicts else 1 if "fail" in verdicts else 0


def _engine_document(report: Report) -> JsonObject:
    facts = report.engine.facts if report.engine else None
    return {
        "url": report.url,
        "problem": report.problem,
        "verdict": report.verdict,
        "kind": facts and facts.kind,
        "version": facts and facts.version,
        "model": facts and facts.model,
        "fingerprint": facts and facts.fingerprint,
        "checks": [
            {
                "check": line.check.name,
                "verdict": line.seen.verdict,
                "seen": line.seen.what,
                "means": line.check.means,
                "remedy": line.remedy,
            }
            for line in report.lines
        ],
        "findings": [
            {
                "profile": finding.profile,
                "setting": finding.setting,
                "severity": finding.severity,
                "message": finding.message,
                "remedy": finding.remedy,
            }
            for finding in report.findings
        ],
    }


def _findings(bench: Bench) -> tuple[Finding, ...]:
    """What `serve` would say of each profile, but what a check says already."""
    return tuple(
        finding
        for profile in bench.profiles
        for finding in check_fit(
            profile, bench.lab.engine.name, bench.facts, require_replayable=bench.require_replayable
        )
        if finding.setting not in {"probe", "seed", "logprobs", "engine"}
    )


def _upstream(settings: Settings) -> Upstream:
    timeouts = settings.timeouts
    return Upstream(
        connect_s=timeouts.connect_s,
        silence_s=timeouts.probe_s,
        probe_s=timeouts.probe_s,
        reply_bytes=settings.limits.reply_bytes,
        gates=Gates(class_wait_s=timeouts.class_wait_s, class_patience_s=timeouts.class_patience_s),
    )
