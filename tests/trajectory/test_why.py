"""What there is to say of calls: the findings, and the tokens beside them."""

from typing import Any

from hypothesis import given, settings

from proxy.model import CallId
from proxy.trajectory.assemble import assemble_calls
from proxy.trajectory.call_facts import read_calls
from proxy.trajectory.glossary import find_reason
from proxy.trajectory.rules import SideRule, TrajectoryRules
from proxy.trajectory.why import CallReport, report_calls, report_rollout
from tests import make
from tests.trajectory.tape import Tape, failed, ids_of, prefix, title_call
from tests.trajectory.trees import rollouts, rules, tapes

SUPPLIED = prefix("exact", eligible=True, requested=True, supplied=True)
REFUSED = prefix("template_refuses", eligible=True)


def reports(tape: Tape, only: str | None = None, **ruled: Any) -> list[CallReport]:
    """What there is to say of a tape."""
    calls = read_calls(tape.calls)
    trajectory = assemble_calls(make.rollout(state="finished"), calls, TrajectoryRules(**ruled))
    return report_calls(trajectory, calls, CallId(only) if only else None)


def words(found: list[CallReport]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What and reason of each finding, by call."""
    return [(one.call.call_id, [(finding.what, finding.reason.word) for finding in one.findings]) for one in found]


def test_a_rollout_in_which_all_went_well_has_nothing_to_explain() -> None:
    """Each call goes on from the one before it, by the ids that were supplied."""
    tape = Tape()
    start = tape.root([1], [10])
    tape.child(start, [2], [11], prefix=SUPPLIED)

    assert reports(tape) == []


def test_a_prompt_that_was_tokenised_anew_is_laid_beside_its_parent() -> None:
    """Up to the first difference and some way beyond, on both sides."""
    tape = Tape()
    start = tape.root(range(30), range(100, 120))
    tape.broken(start, [*range(30), 100, 101, 7, 8, 9], [12], prefix=SUPPLIED)

    (report,) = reports(tape)

    assert words([report]) == [("c1", [("fork", "not_extending")])]
    found = report.difference
    assert found is not None
    assert (found.parent_length, found.prompt_length, found.shared, found.differs) == (50, 35, 32, True)
    assert found.start == 26
    assert found.parent_ids == (*range(26, 30), 100, 101, *range(102, 112))
    assert found.prompt_ids == (*range(26, 30), 100, 101, 7, 8, 9)


def test_a_prompt_that_ends_before_its_parent_does_differs_where_it_ends() -> None:
    """There is nothing on its side."""
    tape = Tape()
    start = tape.root([1, 2], [10, 11])
    tape.broken(start, [1, 2, 10], [12])

    (report,) = reports(tape)

    assert report.difference is not None
    assert report.difference.prompt_ids == (1, 2, 10)
    assert report.difference.parent_ids == (1, 2, 10, 11)


def test_a_refused_prefix_says_why_and_whether_it_mattered() -> None:
    """Here the engine's own render extends the parent all the same."""
    tape = Tape()
    start = tape.root([1], [10])
    tape.child(start, [2], [11], prefix={**REFUSED, "detail": "System message must be first."})

    (report,) = reports(tape)

    assert words([report]) == [("c1", [("prefix", "template_refuses")])]
    assert report.findings[0].sentence == (
        "it was not given its exact prefix, since the template raises on this conversation "
        "(System message must be first.)"
    )
    assert report.difference is not None
    assert not report.difference.differs


def test_a_prefix_that_was_sent_and_is_not_proven_says_so() -> None:
    """The ids that came back are others."""
    tape = Tape()
    start = tape.root([1], [10])
    tape.broken(start, [1, 9, 2], [11], prefix=prefix("other_ids_came_back", eligible=True, requested=True))

    assert words(reports(tape)) == [("c1", [("fork", "not_extending"), ("prefix", "other_ids_came_back")])]


def test_two_children_of_one_call_are_a_fork_that_is_as_it_should_be() -> None:
    """And so is a sub-agent that begins with its parent's tokens."""
    tape = Tape()
    start = tape.root([1], [10], lane_signals={"thread-id": "main"})
    tape.child(start, [2], [11], prefix=SUPPLIED)
    tape.child(start, [3], [12], prefix=SUPPLIED)
    sub = {"thread-id": "sub", "x-codex-parent-thread-id": "main"}
    tape.child(start, [4], [13], lane_signals=sub, prefix=SUPPLIED)

    assert words(reports(tape)) == [("c1", [("fork", "second_child")]), ("c3", [("fork", "other_lane")])]


def test_lost_parents_tell_their_reason_and_what_became_of_them() -> None:
    """An orphan, a call that a header places, and one that its tokens place."""
    tape = Tape()
    start = tape.root([1], [10])
    tape.lost([5], [11], reason="ambiguous")
    tape.lost([6], [12], lane_signals={"thread-id": "t"})
    tape.lost([*ids_of(start), 7], [13])

    assert words(reports(tape)) == [
        ("c1", [("untrained", "unresolved_ambiguous"), ("unresolved", "ambiguous")]),
        ("c2", [("unresolved", "no_match")]),
        ("c3", [("unresolved", "by_tokens")]),
    ]


def test_what_is_left_out_tells_its_rule_its_failure_or_its_state() -> None:
    """With the failure's own words."""
    tape = Tape()
    tape.root([1], [10])
    tape.root([5], [6], **title_call())
    tape.root([1], [10], **{**failed("engine_cut"), "failure": {"kind": "engine_cut", "message": "it broke"}})
    tape.root([1], [10], state="late")

    found = reports(tape)

    assert words(found) == [
        ("c1", [("excluded", "side_rule_title_call")]),
        ("c2", [("excluded", "engine_cut")]),
        ("c3", [("excluded", "late")]),
    ]
    assert found[0].findings[0].sentence == "it is left out, since the side-call rule `title_call` matches"
    assert found[1].findings[0].sentence.endswith("ended before the reply did (it broke)")


def test_masked_replies_in_a_trained_branch_are_told() -> None:
    """With the fields that bent them."""
    tape = Tape()
    start = tape.root([1], [10], sampling={"constrained": ["tool_choice"]})
    tape.child(start, [2], [11], prefix=SUPPLIED)

    (report,) = reports(tape)

    assert words([report]) == [("c0", [("masked", "constrained")])]
    assert report.findings[0].detail == "tool_choice"
    assert reports(tape, constrained_training="keep") == []


def test_what_may_be_a_side_call_is_told_where_it_is_trained_on() -> None:
    """As a doubt."""
    tape = Tape()
    tape.root([5], [6], has_tools=False)
    tape.root([1], [10])

    assert words(reports(tape)) == [("c0", [("doubtful", "maybe_side")])]


def test_one_call_is_told_of_even_where_nothing_is_wrong() -> None:
    """With its tokens beside its parent's."""
    tape = Tape()
    start = tape.root([1], [10])
    tape.child(start, [2], [11], prefix=SUPPLIED)

    (report,) = reports(tape, only="c1")

    assert report.findings == ()
    assert report.difference is not None
    assert report.difference.shared == report.difference.parent_length == 2
    assert reports(tape, only="nope") == []


def test_a_rollout_that_is_not_trained_on_tells_all_its_reasons() -> None:
    """The rollout's own and those of its parts."""
    tape = Tape()
    tape.root([5], [6])
    calls = read_calls(tape.calls)
    every = TrajectoryRules(side_rules=(SideRule("all", requested_model="*"),))
    trajectory = assemble_calls(make.rollout(state="expired"), calls, every)

    assert [one.word for one in report_rollout(trajectory)] == ["side_calls_only", "side_rule_all", "rollout_expired"]


@settings(max_examples=100)
@given(rollouts, tapes(), rules)
def test_every_call_that_is_not_trained_on_is_explained(rollout: Any, calls: Any, ruled: Any) -> None:
    """Each with words that the glossary knows; a branch tells for all of its calls."""
    facts = read_calls(calls)
    trajectory = assemble_calls(rollout, facts, ruled)
    found = {one.call.call_id: one for one in report_calls(trajectory, facts)}
    masks = {one.branch_id: sum(one.loss_mask) for one in trajectory.branches}

    for excluded in trajectory.excluded:
        assert found[excluded.call_id].findings
    for branch in trajectory.branches:
        if not masks[branch.branch_id]:
            assert found[branch.owned_call_ids[0]].findings
    places = ("excluded", "branch", "fork", "link", "unresolved", "parent", "prefix", "failure", "masked", "doubtful")
    for report in found.values():
        for finding in report.findings:
            known = find_reason(finding.reason.word, *places) or finding.reason.word in {"root", "no_outcome_yet"}
            assert known, finding
