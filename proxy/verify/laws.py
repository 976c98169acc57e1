"""The laws of trajectories, held against one that was assembled; docs/trajectories.md words each. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from proxy.counted import counted
from proxy.model import CallId
from proxy.trajectory.assemble import Trajectory
from proxy.trajectory.branches import TRAINABLE_KINDS, Branch
from proxy.trajectory.call_facts import CallFacts


def broken_laws(trajectory: Trajectory, calls: Sequence[CallFacts]) -> Iterator[str]:
    """A sentence for each law that does not hold."""
    known = {call.call_id: call for call in calls}
    yield from _owned_once(trajectory, calls)
    for branch in trajectory.branches:
        yield from _one_length(branch)
        yield from _trained_on_its_own(branch, known)
    trained = sum(sum(branch.loss_mask) for branch in trajectory.branches)
    if trained != trajectory.health.trained_tokens:
        yield f"masks hold {counted(trained, 'token')}, and health counts {trajectory.health.trained_tokens}"


def _owned_once(trajectory: Trajectory, calls: Sequence[CallFacts]) -> Iterator[str]:
    owned = chain.from_iterable(branch.owned_call_ids for branch in trajectory.branches)
    counts = Counter([*owned, *(one.call_id for one in trajectory.excluded)])
    for call in calls:
        if counts.pop(call.call_id, 0) != 1:
            yield f"call {call.call_id} is not owned by exactly one branch, nor excluded"
    for stranger in counts:
        yield f"{stranger} is in a branch, and no call of the rollout"


def _one_length(branch: Branch) -> Iterator[str]:
    if not len(branch.token_ids) == len(branch.loss_mask) == len(branch.logprobs):
        yield f"branch {branch.branch_id}: ids, mask and logprobs differ in length"


def _trained_on_its_own(branch: Branch, known: Mapping[CallId, CallFacts]) -> Iterator[str]:
    """The mask is 1 on generated tokens of owned calls alone, with their logprobs; logprobs are 0.0 elsewhere."""
    expected = [0.0] * len(branch.loss_mask)
    may_train = [False] * len(branch.loss_mask)
    for call_id in branch.owned_call_ids:
        call = known[call_id]
        place = slice(call.prompt_length, call.prompt_length + call.generated)
        expected[place], may_train[place] = call.logprobs, [True] * call.generated
    rows = zip(branch.loss_mask, branch.logprobs, expected, may_train, strict=False)
    for position, (mask, logprob, own, may) in enumerate(rows):
        if mask and not (may and branch.kind in TRAINABLE_KINDS):
            yield f"branch {branch.branch_id}: position {position} is trained on, and must not be"
            return
        if logprob != (own if mask else 0.0):
            yield f"branch {branch.branch_id}: position {position} has a logprob that is not its call's"
            return
