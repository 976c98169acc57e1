"""How whole a rollout's capture is, in numbers and in one word."""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.trajectory.branches import Branch
from proxy.trajectory.call_facts import CallFacts


@dataclass(frozen=True, slots=True)
class Health:
    """Counts of calls unless the name says otherwise."""

    complete: bool
    """Whether all that engines drew for the rollout is on record."""
    reasons: tuple[str, ...]
    calls: int
    done: int
    failed: int
    reserved: int
    late: int
    missing_ids: int
    roots: int
    resolved: int
    by_tokens: int
    unresolved: int
    not_extending: int
    maybe_side: int
    prefix_total: int
    """Completed calls, of which some are eligible, of which some were supplied."""
    prefix_eligible: int
    prefix_supplied: int
    generated_tokens: int
    """Of usable calls."""
    trained_tokens: int
    """The sum of all masks."""


def read_health(calls: Sequence[CallFacts], branches: Sequence[Branch]) -> Health:
    """The counts, and what is missing."""
    states = [call.document["state"] for call in calls]
    links = [link.reason for branch in branches for link in branch.links]
    joined = {link.call_id for branch in branches for link in branch.links if link.reason == "by_tokens"}
    outcomes = [call.parent_outcome for call in calls if not call.unusable and call.call_id not in joined]
    prefixes = [call.document["prefix"] or {} for call in calls if call.document["state"] == "done"]
    reasons = _missing(calls)
    return Health(
        complete=not reasons,
        reasons=reasons,
        calls=len(calls),
        done=states.count("done"),
        failed=states.count("failed"),
        reserved=states.count("reserved"),
        late=states.count("late"),
        missing_ids=sum(_lacks_ids(call) for call in calls),
        roots=outcomes.count("root"),
        resolved=outcomes.count("resolved"),
        by_tokens=links.count("by_tokens"),
        unresolved=outcomes.count("unresolved"),
        not_extending=links.count("not_extending"),
        maybe_side=sum(branch.maybe_side for branch in branches),
        prefix_total=len(prefixes),
        prefix_eligible=sum(bool(prefix.get("eligible")) for prefix in prefixes),
        prefix_supplied=sum(bool(prefix.get("supplied")) for prefix in prefixes),
        generated_tokens=sum(call.generated for call in calls),
        trained_tokens=sum(sum(branch.loss_mask) for branch in branches),
    )


def _lacks_ids(call: CallFacts) -> bool:
    return call.unusable == "missing_ids"


def _missing(calls: Sequence[CallFacts]) -> tuple[str, ...]:
    reasons = {
        "no_outcome_yet": any(call.unusable == "no_outcome_yet" for call in calls),
        "proxy_died": any(call.unusable == "proxy_died" and not _answered_later(call, calls) for call in calls),
        "missing_ids": any(_lacks_ids(call) for call in calls),
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def _answered_later(call: CallFacts, calls: Sequence[CallFacts]) -> bool:
    return any(other.context == call.context and not other.unusable for other in calls[call.order + 1 :])
