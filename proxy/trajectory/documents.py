"""Trajectories as `rollpin.trajectory/1` documents; docs/trajectories.md explains each field."""

from collections.abc import Iterator
from dataclasses import asdict

from proxy.model import JsonObject
from proxy.trajectory.assemble import Excluded, Trajectory
from proxy.trajectory.branches import Branch, Link, Span, Trainable

TRAJECTORY_SCHEMA = "rollpin.trajectory/1"
KEPT_KINDS = frozenset({"main", "subagent", "orphan"})


def trajectory_document(trajectory: Trajectory, *, include_all: bool = False) -> JsonObject:
    """The document; side calls, unused choices and retries are branches where all is asked for, else excluded."""
    parts = trajectory_parts(trajectory, include_all=include_all)
    return {**parts, "branches": list(parts["branches"])}


def trajectory_parts(trajectory: Trajectory, *, include_all: bool = False) -> JsonObject:
    """The same, its branches made one by one as they are asked for: as lists they take ten times the room."""
    rollout = trajectory.rollout
    shown = [branch for branch in trajectory.branches if include_all or branch.kind in KEPT_KINDS]
    hidden = [branch for branch in trajectory.branches if not include_all and branch.kind not in KEPT_KINDS]
    excluded = [*trajectory.excluded, *(one for branch in hidden for one in _as_excluded(branch))]
    return {
        "schema": TRAJECTORY_SCHEMA,
        **{name: getattr(rollout, name) for name in ("rollout_id", "run", "group", "sample", "attempt", "profile")},
        "metadata": rollout.metadata,
        "state": rollout.state,
        "outcome": rollout.outcome,
        "revision": rollout.revision,
        "rules": _rules(trajectory),
        "main_path": _main_path(trajectory),
        "trainable": _trainable(trajectory.trainable),
        "branches": (_branch(branch) for branch in shown),
        "excluded": [asdict(one) for one in excluded],
        "health": {**asdict(trajectory.health), "reasons": list(trajectory.health.reasons)},
    }


def _rules(trajectory: Trajectory) -> JsonObject:
    rules = trajectory.rules
    return {
        "side_rules": [rule.name for rule in rules.side_rules],
        "other_model_is_side": rules.other_model_is_side,
        "side_uncertain": rules.side_uncertain,
        "constrained_training": rules.constrained_training,
    }


def _main_path(trajectory: Trajectory) -> JsonObject:
    path = trajectory.main_path
    owner = (branch.branch_id for branch in trajectory.branches if path.call_id in branch.owned_call_ids)
    return {"branch": next(owner, None), "call_id": path.call_id, "reason": path.reason}


def _as_excluded(branch: Branch) -> Iterator[Excluded]:
    """Of a call that is not kept, its own reason stands first."""
    for call_id in branch.owned_call_ids:
        yield Excluded(call_id, branch.trainable.reasons[0])


def _trainable(trainable: Trainable) -> JsonObject:
    return {"value": trainable.value, "reasons": list(trainable.reasons)}


def _branch(branch: Branch) -> JsonObject:
    fork = branch.forked_from
    return {
        "branch_id": branch.branch_id,
        "kind": branch.kind,
        "lane": branch.lane,
        "maybe_side": branch.maybe_side,
        "side_reason": branch.side_reason,
        "trainable": _trainable(branch.trainable),
        "forked_from": None if fork is None else {"branch": fork.branch, "length": fork.length},
        "call_ids": list(branch.call_ids),
        "owned_call_ids": list(branch.owned_call_ids),
        "links": [_link(link) for link in branch.links],
        "token_ids": branch.token_ids,
        "loss_mask": list(branch.loss_mask),
        "logprobs": branch.logprobs.tolist(),
        "weight_spans": [_span(span) for span in branch.weight_spans],
        "seeds": [_span(span) for span in branch.seeds],
        "constrained_spans": [_span(span) for span in branch.constrained_spans],
        "call_outcomes": [{"call_id": call_id, "outcome": outcome} for call_id, outcome in branch.call_outcomes],
        "finish_reason": branch.finish_reason,
    }


def _link(link: Link) -> JsonObject:
    return {"call_id": link.call_id, "parent_call_id": link.parent_call_id, "reason": link.reason}


def _span(span: Span) -> JsonObject:
    return {"start": span.start, "end": span.end, **span.facts}
