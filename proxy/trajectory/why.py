"""Why a rollout's calls stand where they stand: every fork, refused prefix, exclusion and lost parent, found and told.

Nothing is decided here: it reads what assembly decided, and lays the tokens of a call beside its parent's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from proxy.ids import ID_BYTES, shared_ids, unpack_ids
from proxy.model import CallId, JsonObject
from proxy.trajectory.assemble import Trajectory
from proxy.trajectory.branches import Branch, Link
from proxy.trajectory.call_facts import CallFacts
from proxy.trajectory.documents import KEPT_KINDS
from proxy.trajectory.glossary import Place, Reason, explain

What = Literal["excluded", "untrained", "masked", "fork", "prefix", "unresolved", "doubtful"]
HEADS: dict[What, str] = {
    "excluded": "it is left out",
    "untrained": "its branch is not trained on",
    "masked": "its tokens are not trained on",
    "fork": "it does not continue its parent's branch",
    "prefix": "it was not given its exact prefix",
    "unresolved": "its parent is not known by meaning",
    "doubtful": "its branch is trained on, though",
}
# Ids shown before the first difference, and from it on.
WINDOW_BEFORE, WINDOW_AFTER = 6, 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that there is to say of a call."""

    what: What
    reason: Reason
    detail: str = ""

    @property
    def sentence(self) -> str:
        """All of it, in one."""
        joint = " " if self.what == "doubtful" else ", since "
        detail = f" ({self.detail})" if self.detail else ""
        return f"{HEADS[self.what]}{joint}{self.reason.meaning}{detail}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A call's prompt beside all that its parent read and said."""

    parent_id: CallId
    parent_length: int
    prompt_length: int
    shared: int
    """Ids that the two have in common from the start; where the prompt extends its parent, all of the parent's."""
    parent_ids: tuple[int, ...]
    """Ids around the first difference, from place `start` on; none where there is no difference."""
    prompt_ids: tuple[int, ...]

    @property
    def start(self) -> int:
        return max(0, self.shared - WINDOW_BEFORE)

    @property
    def differs(self) -> bool:
        return self.shared < self.parent_length


@dataclass(frozen=True, slots=True)
class CallReport:
    """What there is to say of one call."""

    call: CallFacts
    branch: Branch | None
    """The branch that owns it."""
    link: Link | None
    parent: CallFacts | None
    """The call that it goes on from, by meaning or by tokens."""
    findings: tuple[Finding, ...]
    difference: Difference | None


def report_calls(trajectory: Trajectory, calls: Sequence[CallFacts], only: CallId | None = None) -> list[CallReport]:
    """The calls of which there is something to say, in order; where one is asked for, that one in any case."""
    owners = {call_id: branch for branch in trajectory.branches for call_id in branch.owned_call_ids}
    known = {call.call_id: call for call in calls}
    excluded = {one.call_id: one.reason for one in trajectory.excluded}
    reports = list[CallReport]()
    for call in calls:
        if only is not None and call.call_id != only:
            continue
        branch = owners.get(call.call_id)
        link = next((one for one in branch.links if one.call_id == call.call_id), None) if branch else None
        if branch is None or link is None:
            findings = (_left_out(call, excluded[call.call_id]),)
            reports.append(CallReport(call, None, None, _known(call.parent_id, known), findings, None))
            continue
        found = tuple(_findings(call, branch, link, owners, trajectory))
        parent = _known(link.parent_call_id, known)
        difference = _difference(call, parent) if only is not None or _asks_for_ids(found) else None
        if found or only is not None:
            reports.append(CallReport(call, branch, link, parent, found, difference))
    return reports


def report_rollout(trajectory: Trajectory) -> list[Reason]:
    """Why nothing of a rollout is trained on."""
    places: tuple[Place, ...] = ("trajectory", "branch", "excluded", "failure")
    return [explain(reason, *places) for reason in trajectory.trainable.reasons]


def _left_out(call: CallFacts, reason: str) -> Finding:
    failure: JsonObject = call.document["failure"] or {}
    place: Place = "failure" if call.document["state"] == "failed" else "excluded"
    return Finding("excluded", explain(reason, place, "excluded"), str(failure.get("message") or ""))


def _findings(
    call: CallFacts, branch: Branch, link: Link, owners: Mapping[CallId, Branch], trajectory: Trajectory
) -> Iterator[Finding]:
    if branch.kind not in KEPT_KINDS:
        yield Finding("excluded", explain(branch.trainable.reasons[0], "branch"))
        return
    is_first = call.call_id == branch.owned_call_ids[0]
    if is_first:
        yield from (Finding("untrained", explain(one, "branch")) for one in branch.trainable.reasons)
        if branch.side_reason is not None and branch.trainable.value:
            yield Finding("doubtful", explain(branch.side_reason, "doubtful"))
    if call.constrained and branch.trainable.value and trajectory.rules.constrained_training == "mask":
        yield Finding("masked", explain("constrained", "masked"), ", ".join(call.constrained))
    yield from chain(_unresolved(call, link), _fork(link, branch, owners, is_first=is_first), _prefix(call))


def _unresolved(call: CallFacts, link: Link) -> Iterator[Finding]:
    if call.parent_outcome == "unresolved":
        word = link.reason if link.parent_call_id else call.parent_reason
        yield Finding("unresolved", explain("by_tokens" if link.parent_call_id else word, "unresolved", "parent"))


def _fork(link: Link, branch: Branch, owners: Mapping[CallId, Branch], *, is_first: bool) -> Iterator[Finding]:
    """Where a call hangs elsewhere than on its parent's own branch."""
    if link.parent_call_id is None:
        return
    if link.reason not in {"extends", "by_tokens"}:
        yield Finding("fork", explain(link.reason, "fork", "link"))
    elif is_first:
        same_lane = owners[link.parent_call_id].lane == branch.lane
        yield Finding("fork", explain("second_child" if same_lane else "other_lane", "fork"))


def _prefix(call: CallFacts) -> Iterator[Finding]:
    """A parent was there, and its ids were not supplied, or not proven to be."""
    prefix: JsonObject = call.document["prefix"] or {}
    if call.parent_outcome == "resolved" and not prefix.get("supplied"):
        yield Finding("prefix", explain(str(prefix.get("reason")), "prefix"), str(prefix.get("detail") or ""))


def _asks_for_ids(findings: Sequence[Finding]) -> bool:
    return any(one.what == "prefix" or one.reason.word == "not_extending" for one in findings)


def _known(call_id: CallId | None, known: Mapping[CallId, CallFacts]) -> CallFacts | None:
    return known.get(call_id) if call_id is not None else None


def _difference(call: CallFacts, parent: CallFacts | None) -> Difference | None:
    """None where either side's ids are not whole."""
    if parent is None or parent.unusable or call.unusable:
        return None
    prompt = call.tokens[: call.prompt_length * ID_BYTES]
    shared = shared_ids(parent.tokens, prompt)
    whole = Difference(parent.call_id, len(parent.tokens) // ID_BYTES, call.prompt_length, shared, (), ())
    if not whole.differs:
        return whole
    window = slice(whole.start * ID_BYTES, (shared + WINDOW_AFTER) * ID_BYTES)
    ids = (tuple(unpack_ids(side[window])) for side in (parent.tokens, prompt))
    return Difference(parent.call_id, whole.parent_length, whole.prompt_length, shared, *ids)
