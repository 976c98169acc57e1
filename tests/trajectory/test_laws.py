"""The laws of trajectories, over random rollouts; each is checked from the calls themselves, not from the assembly."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.model import JsonObject, Rollout
from proxy.trajectory.assemble import assemble
from proxy.trajectory.documents import trajectory_document
from proxy.trajectory.rules import TrajectoryRules
from tests.trajectory.tape import Tape, ids_of
from tests.trajectory.trees import prompts, rollouts, rules, tapes

FAVOURED = {"main", "subagent"}


class Case(NamedTuple):
    """A rollout, its calls by id, and what became of them."""

    rollout: Rollout
    calls: dict[str, JsonObject]
    rules: TrajectoryRules

    def document(self, *, include_all: bool = True) -> JsonObject:
        made = assemble(self.rollout, self.calls.values(), self.rules)
        return trajectory_document(made, include_all=include_all)

    def is_bent(self, call_id: str) -> bool:
        """Whether a call's tokens are left out for being constrained."""
        return bool(self.calls[call_id]["sampling"]["constrained"]) and self.rules.constrained_training == "mask"


cases = st.builds(
    lambda rollout, calls, ruled: Case(rollout, {call["call_id"]: call for call in calls}, ruled),
    rollouts,
    tapes(),
    rules,
)
law = settings(max_examples=100)


def generated(call: JsonObject) -> range:
    """Where a call's generated tokens stand in any row that holds it."""
    first = len(call["prompt_token_ids"])
    return range(first, first + len(call["completion_token_ids"]))


def main_lane(document: JsonObject) -> str | None:
    """The lane whose branches are main."""
    return next((one["lane"] for one in document["branches"] if one["kind"] == "main"), None)


def trained(case: Case, document: JsonObject) -> Iterator[tuple[str, int]]:
    """Every generated token, as (call, place in its reply), on which some row has mask 1."""
    for branch in document["branches"]:
        for position, flag in enumerate(branch["loss_mask"]):
            if flag:
                owners = [one for one in branch["call_ids"] if position in generated(case.calls[one])]
                assert len(owners) == 1
                yield owners[0], position - len(case.calls[owners[0]]["prompt_token_ids"])


@law
@given(cases)
def test_the_arrays_of_a_branch_have_one_length(case: Case) -> None:
    """Ids, mask and logprobs, one entry per token."""
    for branch in case.document()["branches"]:
        lengths = {len(branch[name]) for name in ("token_ids", "loss_mask", "logprobs")}
        assert len(lengths) == 1


@law
@given(cases, st.booleans())
def test_every_call_is_owned_once_or_excluded_with_a_reason(case: Case, include_all: Any) -> None:
    """In either view, and no call is made up."""
    document = case.document(include_all=include_all)
    owned = [call_id for branch in document["branches"] for call_id in branch["owned_call_ids"]]
    excluded = [one["call_id"] for one in document["excluded"]]

    assert Counter(owned + excluded) == Counter(case.calls.keys())
    assert all(one["reason"] for one in document["excluded"])


@law
@given(cases)
def test_a_branch_holds_the_tokens_of_its_calls_and_owns_only_the_last_of_them(case: Case) -> None:
    """What it shares with another is context: in its ids, not in its mask, and owned by that other."""
    document = case.document()
    owners = {one: branch["branch_id"] for branch in document["branches"] for one in branch["owned_call_ids"]}
    for branch in document["branches"]:
        shared = branch["call_ids"][: len(branch["call_ids"]) - len(branch["owned_call_ids"])]
        assert branch["call_ids"] == shared + branch["owned_call_ids"]
        for call_id in branch["call_ids"]:
            whole = ids_of(case.calls[call_id])
            assert branch["token_ids"][: len(whole)] == whole
        for call_id in shared:
            assert owners[call_id] != branch["branch_id"]
            assert not any(branch["loss_mask"][place] for place in generated(case.calls[call_id]))


@law
@given(cases)
def test_a_fork_names_a_branch_that_shares_as_many_ids_as_it_says(case: Case) -> None:
    """And that owns the last shared call, where whole calls are shared."""
    document = case.document()
    branches = {branch["branch_id"]: branch for branch in document["branches"]}
    for branch in branches.values():
        shared = [one for one in branch["call_ids"] if one not in branch["owned_call_ids"]]
        fork = branch["forked_from"]
        if fork is None:
            assert not shared
            continue
        other, length = branches[fork["branch"]], fork["length"]
        assert other is not branch
        assert length > 0
        assert branch["token_ids"][:length] == other["token_ids"][:length]
        assert branch["token_ids"][length : length + 1] != other["token_ids"][length : length + 1] or (
            length == min(len(branch["token_ids"]), len(other["token_ids"]))
        )
        if shared:
            assert shared[-1] in other["owned_call_ids"]
            assert length >= len(ids_of(case.calls[shared[-1]]))


@settings(max_examples=400)  # forks beside the main path are rare
@given(cases)
def test_a_shared_call_is_owned_by_the_main_path_else_by_its_earliest_child(case: Case) -> None:
    """Children of other lanes, and calls that are not kept, take nothing of their parent's."""
    document = case.document(include_all=False)
    branches = document["branches"]
    lanes = {one: branch["lane"] for branch in branches for one in branch["owned_call_ids"]}
    order = list(case.calls)
    end = document["main_path"]["call_id"]
    main = next((one["call_ids"] for one in branches if end in one["owned_call_ids"]), [])
    on_main = main[: main.index(end) + 1] if end else []
    for call_id, lane in lanes.items():
        holders = [branch for branch in branches if call_id in branch["call_ids"]]
        (owner,) = (branch for branch in holders if call_id in branch["owned_call_ids"])
        if call_id in on_main[:-1]:
            assert end in owner["owned_call_ids"]
            continue
        following = {
            branch["call_ids"][branch["call_ids"].index(call_id) + 1]
            for branch in holders
            if branch["call_ids"][-1] != call_id
        }
        children = [one for one in following if lanes[one] == lane]
        heir = min(children, key=order.index, default=call_id)
        assert heir in owner["owned_call_ids"]


@law
@given(cases)
def test_the_mask_is_one_exactly_on_generated_tokens_of_owned_calls_of_trainable_branches(case: Case) -> None:
    """Main and sub-agents only; constrained replies only where they are kept."""
    for branch in case.document()["branches"]:
        expected = [0] * len(branch["token_ids"])
        if branch["trainable"]["value"]:
            assert branch["kind"] in FAVOURED
            for call_id in branch["owned_call_ids"]:
                for place in () if case.is_bent(call_id) else generated(case.calls[call_id]):
                    expected[place] = 1
        assert branch["loss_mask"] == expected


@law
@given(cases)
def test_the_sum_of_all_masks_is_the_generated_tokens_of_trainable_owned_calls(case: Case) -> None:
    """Counted on the calls."""
    document = case.document()
    owned = [one for branch in document["branches"] if branch["trainable"]["value"] for one in branch["owned_call_ids"]]
    expected = sum(len(case.calls[one]["completion_token_ids"]) for one in owned if not case.is_bent(one))

    assert sum(sum(branch["loss_mask"]) for branch in document["branches"]) == expected
    assert document["health"]["trained_tokens"] == expected


@law
@given(cases)
def test_logprobs_are_the_recorded_ones_where_trained_and_zero_elsewhere(case: Case) -> None:
    """Never missing where the mask is 1."""
    for branch in case.document()["branches"]:
        expected = [0.0] * len(branch["token_ids"])
        for call_id in branch["owned_call_ids"]:
            call = case.calls[call_id]
            for place, logprob in zip(generated(call), call["logprobs"], strict=True):
                expected[place] = logprob if branch["loss_mask"][place] else 0.0
        assert branch["logprobs"] == expected


@law
@given(cases)
def test_who_ignores_kinds_trains_on_nothing_twice(case: Case) -> None:
    """No generated token has mask 1 in two rows."""
    counted = Counter(trained(case, case.document()))

    assert not counted or max(counted.values()) == 1


@law
@given(cases)
def test_who_ignores_kinds_trains_on_nothing_wrong(case: Case) -> None:
    """Only on whole, recorded replies that stand on a path of the policy's, of a rollout that counts."""
    document = case.document()
    for call_id, _place in trained(case, document):
        call = case.calls[call_id]
        assert call["state"] == "done"
        assert call["capture"]["complete"]
        assert case.rollout.state in {"open", "finished"}
        assert all(one["capture"]["complete"] for one in case.calls.values() if one["state"] == "done")
        assert not case.is_bent(call_id)
        assert (
            not call["requested_model"]
            or not any(rule.name == "small" for rule in case.rules.side_rules)
            or (call["requested_model"] != "small")
        )


@law
@given(cases)
def test_of_several_choices_only_those_are_trained_on_that_a_later_call_goes_on_from(case: Case) -> None:
    """Where none is gone on from, one."""
    document = case.document()
    named = {(call["parent"] or {}).get("call_id") for call in case.calls.values()}
    named |= {link["parent_call_id"] for branch in document["branches"] for link in branch["links"]}
    paths = {call_id for call_id, _place in trained(case, document)}
    for request in {call["request_id"] for call in case.calls.values()}:
        choices = {call["call_id"] for call in case.calls.values() if call["request_id"] == request}
        if len(choices) > 1:
            assert paths & choices <= named or (not choices & named and len(paths & choices) <= 1)


@law
@given(cases)
def test_both_views_train_on_the_same(case: Case) -> None:
    """What the short view leaves out has no mask."""
    assert sorted(trained(case, case.document())) == sorted(trained(case, case.document(include_all=False)))


@law
@given(cases, prompts, st.data())
def test_a_child_that_breaks_away_takes_nothing_from_its_parent(case: Case, prompt: list[int], data: Any) -> None:
    """Whatever was trained on before it came is trained on after, while the same lane has the main path."""
    requests = Counter(call["request_id"] for call in case.calls.values())
    parents = [call for call in case.calls.values() if requests[call["request_id"]] == 1]
    if not parents:
        return
    tape = Tape()
    tape.calls = list(case.calls.values())
    parent = data.draw(st.sampled_from(parents))
    late = tape.broken(parent, prompt, [1, 2], has_tools=False, request={}, requested_model=None)
    after = case._replace(calls={**case.calls, late["call_id"]: late})
    earlier, later = case.document(), after.document()
    lost = set(trained(case, earlier)) - set(trained(after, later))

    assert not lost or main_lane(earlier) != main_lane(later)


@law
@given(cases)
def test_a_call_that_names_no_model_is_never_taken_for_a_side_call(case: Case) -> None:
    """Whatever the rules."""
    for branch in case.document()["branches"]:
        if branch["kind"] == "side":
            assert all(case.calls[one]["requested_model"] for one in branch["owned_call_ids"])


@law
@given(cases)
def test_all_kept_branches_of_the_opening_lane_are_main(case: Case) -> None:
    """Also those after a compaction, and none of another lane."""
    document = case.document(include_all=False)
    branches = [branch for branch in document["branches"] if branch["kind"] in FAVOURED]
    main = {branch["lane"] for branch in branches if branch["kind"] == "main"}

    assert len(main) == bool(branches)
    assert all((branch["kind"] == "main") == (branch["lane"] in main) for branch in branches)


@law
@given(cases)
def test_spans_lie_on_generated_tokens_of_owned_calls(case: Case) -> None:
    """Weights and seeds of every owned reply, in the row's own positions."""
    for branch in case.document()["branches"]:
        places = [place for one in branch["owned_call_ids"] for place in generated(case.calls[one])]
        bent = [
            place
            for one in branch["owned_call_ids"]
            if case.calls[one]["sampling"]["constrained"]
            for place in generated(case.calls[one])
        ]
        for name, expected in (("weight_spans", places), ("seeds", places), ("constrained_spans", bent)):
            assert [place for span in branch[name] for place in range(span["start"], span["end"])] == expected


@law
@given(cases)
def test_whatever_is_not_trainable_says_why(case: Case) -> None:
    """The trajectory and each branch; and what is trainable has something to train on."""
    document = case.document()
    for one in (document, *document["branches"]):
        assert one["trainable"]["value"] != bool(one["trainable"]["reasons"])
    for branch in document["branches"]:
        assert branch["trainable"]["value"] == bool(sum(branch["loss_mask"]))
    assert document["trainable"]["value"] == any(branch["trainable"]["value"] for branch in document["branches"])


@law
@given(cases)
def test_a_reply_without_ids_leaves_nothing_to_train_on(case: Case) -> None:
    """In no lane, and the trajectory says why."""
    document = case.document()
    if any(one["state"] == "done" and not one["capture"]["complete"] for one in case.calls.values()):
        assert "missing_ids" in document["trainable"]["reasons"]
        assert not any(sum(branch["loss_mask"]) for branch in document["branches"])


@law
@given(cases)
def test_prefixes_are_counted_over_completed_calls(case: Case) -> None:
    """Those supplied are some of those eligible, and these some of all."""
    health = case.document()["health"]
    told = [call["prefix"] for call in case.calls.values() if call["state"] == "done"]
    counts = [sum(prefix[name] for prefix in told) for name in ("eligible", "supplied")]

    assert [health[f"prefix_{name}"] for name in ("total", "eligible", "supplied")] == [len(told), *counts]
    assert health["prefix_supplied"] <= health["prefix_eligible"] <= health["prefix_total"]


@law
@given(cases)
def test_a_call_that_was_supplied_continues_its_parents_row(case: Case) -> None:
    """Unless the parent itself is in no kept row."""
    for branch in case.document()["branches"]:
        for link in branch["links"]:
            if case.calls[link["call_id"]]["prefix"]["supplied"]:
                assert link["reason"] == "extends" or link["reason"].startswith("parent_")


@law
@given(cases)
def test_a_document_is_plain_json(case: Case) -> None:
    """And says the same each time."""
    text = json.dumps(case.document(), allow_nan=False)

    assert json.loads(text) == case.document()
