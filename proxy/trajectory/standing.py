"""What each usable call is to the task: kept, beside it, an unused choice, or a try that was made again."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from proxy.model import CallId
from proxy.trajectory.call_facts import CallFacts
from proxy.trajectory.lineage import Lineage
from proxy.trajectory.rules import TrajectoryRules

StandingKind = Literal["kept", "side", "unused", "retry"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a call may be trained on, and if not, why."""

    kind: StandingKind
    reason: str = ""
    """Why it is not kept; of a kept one why it may be a side call all the same."""
    maybe_side: bool = False
    """Whether it looks like a side call and cannot be proven to be one."""


def read_standings(calls: Sequence[CallFacts], lineage: Lineage, rules: TrajectoryRules) -> dict[CallId, Standing]:
    """The standing of every usable call."""
    usable = [call for call in calls if not call.unusable]
    found = _sides(usable, lineage, rules)
    rest = [call for call in usable if found[call.call_id].kind == "kept"]
    for call in _unused(rest, lineage):
        found[call.call_id] = Standing("unused", "unused_choice")
    for call in _retried(rest, calls, lineage):
        if found[call.call_id].kind == "kept":
            found[call.call_id] = Standing("retry", "retried")
    return found


def agent_models(calls: Iterable[CallFacts]) -> frozenset[str]:
    """The model that generated most for calls with tools; several where they are equal."""
    generated = Counter[str]()
    for call in calls:
        if call.has_tools and call.requested_model:
            generated[call.requested_model] += call.generated
    most = max(generated.values(), default=0)
    return frozenset(model for model, count in generated.items() if count == most)


def _sides(usable: Sequence[CallFacts], lineage: Lineage, rules: TrajectoryRules) -> dict[CallId, Standing]:
    models = agent_models(usable)
    has_tools = any(call.has_tools for call in usable)
    continued = lineage.continued
    return {
        call.call_id: _side(
            call, models, rules, is_alone=has_tools and _is_lone(call) and call.call_id not in continued
        )
        for call in usable
    }


def _is_lone(call: CallFacts) -> bool:
    return call.parent_outcome == "root" and not call.has_tools


def _side(call: CallFacts, models: frozenset[str], rules: TrajectoryRules, *, is_alone: bool) -> Standing:
    """A call that names no model is never taken out; of the rules the first that matches decides."""
    rule = next((rule for rule in rules.side_rules if rule.matches(call, is_alone=is_alone)), None)
    if rule is not None and rule.action == "keep":
        return Standing("kept")
    if rule is not None and rule.action == "exclude" and call.requested_model is not None:
        return Standing("side", f"side_rule_{rule.name}")
    if rule is not None:
        return _doubtful(call, f"side_rule_{rule.name}", rules)
    if not is_alone:
        return Standing("kept")
    if rules.other_model_is_side and models and call.requested_model not in {None, *models}:
        return Standing("side", "side_other_model")
    return _doubtful(call, "maybe_side", rules)


def _doubtful(call: CallFacts, reason: str, rules: TrajectoryRules) -> Standing:
    """Kept with a label, unless doubtful calls are to be dropped and this one names its model."""
    is_dropped = rules.side_uncertain == "drop" and call.requested_model is not None
    return Standing("side" if is_dropped else "kept", reason, maybe_side=True)


def _unused(calls: Sequence[CallFacts], lineage: Lineage) -> list[CallFacts]:
    """Choices that no later call goes on from; where none is gone on from, all but the longest."""
    requests = defaultdict[str, list[CallFacts]](list)
    for call in calls:
        requests[call.request_id].append(call)
    unused = list[CallFacts]()
    for choices in requests.values():
        used = {call.call_id for call in choices} & lineage.continued or {_longest(choices).call_id}
        unused += [call for call in choices if call.call_id not in used]
    return unused


def _longest(choices: Sequence[CallFacts]) -> CallFacts:
    return max(choices, key=lambda call: (call.generated, -call.choice))


def _retried(calls: Sequence[CallFacts], everything: Sequence[CallFacts], lineage: Lineage) -> list[CallFacts]:
    """Replies that no client got and none goes on from, where another request asked the same conversation later."""
    asked_last = {call.context: call.request_id for call in everything}
    return [
        call
        for call in calls
        if call.is_undelivered and call.call_id not in lineage.continued and asked_last[call.context] != call.request_id
    ]
