"""The story of assembly: calls get lanes and parents, parents make chains, chains become branches, all with reasons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from proxy.model import CallId, JsonObject, Rollout
from proxy.trajectory.branches import Branch, BranchKind, Role, Trainable, make_branch
from proxy.trajectory.call_facts import CallFacts, read_calls
from proxy.trajectory.chains import Chain, kept_chains, lone_chains
from proxy.trajectory.health import Health, read_health
from proxy.trajectory.lanes import Lane, read_lanes
from proxy.trajectory.lineage import Lineage, read_lineage, recorded_parents
from proxy.trajectory.main_path import MainPath, find_main_path
from proxy.trajectory.rules import TrajectoryRules
from proxy.trajectory.standing import Standing, read_standings


@dataclass(frozen=True, slots=True)
class Excluded:
    """A recorded call that is in no branch, and why."""

    call_id: CallId
    reason: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A rollout as rows to train on."""

    rollout: Rollout
    rules: TrajectoryRules
    main_path: MainPath
    branches: tuple[Branch, ...]
    """Every usable call is owned by one of them: kept ones first, then those of side calls, unused choices, retries."""
    excluded: tuple[Excluded, ...]
    """Every other call."""
    trainable: Trainable
    health: Health


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that was found out about the calls before any row is made."""

    calls: tuple[CallFacts, ...]
    lanes: Mapping[CallId, Lane]
    lineage: Lineage
    standings: Mapping[CallId, Standing]
    orphans: frozenset[CallId]
    main_path: MainPath

    @property
    def usable(self) -> list[CallFacts]:
        return [call for call in self.calls if not call.unusable]

    @property
    def kept(self) -> list[CallFacts]:
        return [call for call in self.usable if self.standings[call.call_id].kind == "kept"]


def assemble(rollout: Rollout, documents: Iterable[JsonObject], rules: TrajectoryRules) -> Trajectory:
    """All branches of a rollout, from its `rollpin.call/1` documents in order of reservation."""
    return assemble_calls(rollout, read_calls(documents), rules)


def assemble_calls(rollout: Rollout, calls: Sequence[CallFacts], rules: TrajectoryRules) -> Trajectory:
    """The same, from calls that were read already."""
    reading = read(tuple(calls), rules)
    branches = _branches(reading, rules, _bars(rollout, reading.calls))
    return Trajectory(
        rollout=rollout,
        rules=rules,
        main_path=reading.main_path,
        branches=branches,
        excluded=tuple(Excluded(call.call_id, call.unusable) for call in reading.calls if call.unusable),
        trainable=_trainable(rollout, reading, branches),
        health=read_health(reading.calls, branches),
    )


def read(calls: tuple[CallFacts, ...], rules: TrajectoryRules) -> Reading:
    """Lanes, parents, standings and the main path."""
    lanes = read_lanes(calls, recorded_parents(calls))
    lineage = read_lineage(calls, lanes)
    standings = read_standings(calls, lineage, rules)
    orphans = _orphans(calls, lanes, lineage)
    kept = [call for call in calls if not call.unusable and standings[call.call_id].kind == "kept"]
    placed = [call for call in kept if call.call_id not in orphans]
    sure = [call for call in placed if not standings[call.call_id].maybe_side]
    return Reading(calls, lanes, lineage, standings, orphans, find_main_path(sure or placed, lanes))


def _orphans(calls: Sequence[CallFacts], lanes: Mapping[CallId, Lane], lineage: Lineage) -> frozenset[CallId]:
    """Calls that no parent, no tokens and no header place, and all that go on from them."""
    orphans = set[CallId]()
    for call in calls:
        parent = lineage.parents.get(call.call_id)
        is_lost = parent in orphans if parent is not None else call.parent_outcome != "root"
        if is_lost and not lanes[call.call_id].is_named:
            orphans.add(call.call_id)
    return frozenset(orphans)


def _branches(reading: Reading, rules: TrajectoryRules, bars: tuple[str, ...]) -> tuple[Branch, ...]:
    usable, kept = reading.usable, reading.kept
    others = [call for call in usable if reading.standings[call.call_id].kind != "kept"]
    chains = [
        *kept_chains(kept, reading.lineage, reading.lanes, reading.main_path.call_id),
        *lone_chains(others, usable, reading.lineage),
    ]
    holders = {call.call_id: chain for chain in chains for call in chain.owned}
    roles = (_role(chain, reading, rules, bars) for chain in chains)
    return tuple(make_branch(chain, role, reading.lineage, holders) for chain, role in zip(chains, roles, strict=True))


def _role(chain: Chain, reading: Reading, rules: TrajectoryRules, bars: tuple[str, ...]) -> Role:
    standing = reading.standings[chain.name]
    kind = _kind(chain, reading)
    lane = reading.lanes[chain.name].key
    own = (standing.reason,) if standing.kind != "kept" else ()
    if kind == "orphan":
        own = (f"unresolved_{_lost_at(chain, reading.lineage).parent_reason}",)
    masks_constrained = rules.constrained_training == "mask"
    doubts = (reading.standings[call.call_id] for call in chain.owned)
    doubt = next((one.reason for one in doubts if one.maybe_side), None)
    return Role(kind, lane, doubt, (*own, *bars), masks_constrained)


def _lost_at(chain: Chain, lineage: Lineage) -> CallFacts:
    """The call at which an orphan's line breaks off."""
    return [chain.last, *lineage.ancestors(chain.last)][-1]


def _kind(chain: Chain, reading: Reading) -> BranchKind:
    standing = reading.standings[chain.name]
    if standing.kind != "kept":
        return standing.kind
    if chain.name in reading.orphans:
        return "orphan"
    return "main" if reading.lanes[chain.name].key == reading.main_path.lane else "subagent"


def _bars(rollout: Rollout, calls: Sequence[CallFacts]) -> tuple[str, ...]:
    """What keeps a whole rollout from being trained on.

    A reply that the harness got and whose ids are not known is part of what it did: no row tells the whole story then.
    """
    ended = (f"rollout_{rollout.state}",) if rollout.state in {"expired", "deleted"} else ()
    return (*ended, "missing_ids") if any(call.was_passed_on_without_ids for call in calls) else ended


def _trainable(rollout: Rollout, reading: Reading, branches: Sequence[Branch]) -> Trainable:
    if any(branch.trainable.value for branch in branches):
        return Trainable(value=True)
    if not reading.calls:
        return Trainable(value=False, reasons=(*_bars(rollout, ()), "no_calls"))
    standings = reading.standings.values()
    only_sides = ["side_calls_only"] if standings and all(one.kind == "side" for one in standings) else []
    reasons = [reason for branch in branches for reason in branch.trainable.reasons]
    unusable = [call.unusable for call in reading.calls if call.unusable]
    return Trainable(value=False, reasons=tuple(dict.fromkeys([*only_sides, *reasons, *unusable])))
