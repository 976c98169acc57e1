"""Rollouts as harnesses make them, and the rows that come of them."""

from collections.abc import Sequence
from typing import Any

import pytest

from proxy.model import JsonObject
from proxy.trajectory.assemble import assemble
from proxy.trajectory.call_facts import read_calls
from proxy.trajectory.documents import trajectory_document
from proxy.trajectory.rules import SideRule, TrajectoryRules
from tests import make
from tests.trajectory.tape import Tape, choice, failed, ids_of, title_call, undelivered, without_ids

MAIN = {"session-id": "s", "thread-id": "main"}
FIRST_SUB = {"session-id": "s", "thread-id": "one", "x-codex-parent-thread-id": "main"}
SECOND_SUB = {"session-id": "s", "thread-id": "two", "x-codex-parent-thread-id": "main"}


def document(tape: Tape, *, include_all: bool = False, state: Any = "finished", **rules: Any) -> JsonObject:
    """The trajectory of a tape."""
    made = assemble(make.rollout(state=state), tape.calls, TrajectoryRules(**rules))
    return trajectory_document(made, include_all=include_all)


def rows(found: JsonObject) -> list[tuple[str, list[str]]]:
    """Kind and owned calls of each branch."""
    return [(branch["kind"], branch["owned_call_ids"]) for branch in found["branches"]]


def masked(branch: JsonObject) -> list[int]:
    """The ids that a branch trains on."""
    pairs = zip(branch["token_ids"], branch["loss_mask"], strict=True)
    return [token for token, flag in pairs if flag]


def names(calls: Sequence[JsonObject]) -> list[str]:
    return [call["call_id"] for call in calls]


def test_sub_agents_choices_and_a_title_call_end_as_they_should() -> None:
    """Two interleaved sub-agents, a best-of-n step and a title call: three branches, unused choices, a side call."""
    tape = Tape()
    title = tape.root([9, 9], [8], lane_signals=MAIN, requested_model="small", has_tools=False)
    start = tape.root([1, 2], [10, 11], lane_signals=MAIN)
    one = tape.root([1, 3], [20], lane_signals=FIRST_SUB)
    two = tape.root([1, 3], [30], lane_signals=SECOND_SUB)
    first = tape.child(start, [4], [12])
    used = tape.call(first["prompt_token_ids"], [13, 14], parent=first["parent"], **choice(1, first))
    unused = tape.call(first["prompt_token_ids"], [15, 16, 17], parent=first["parent"], **choice(2, first))
    one_more = tape.child(one, [5], [21, 22])
    two_more = tape.child(two, [5], [31])
    end = tape.child(used, [6], [18])

    short, whole = document(tape), document(tape, include_all=True)

    assert rows(short) == [
        ("main", names([start, used, end])),
        ("subagent", names([one, one_more])),
        ("subagent", names([two, two_more])),
    ]
    assert [masked(branch) for branch in short["branches"]] == [[10, 11, 13, 14, 18], [20, 21, 22], [30, 31]]
    assert {one["call_id"]: one["reason"] for one in short["excluded"]} == {
        title["call_id"]: "side_other_model",
        first["call_id"]: "unused_choice",
        unused["call_id"]: "unused_choice",
    }
    assert rows(whole)[3:] == [("side", ["c0"]), ("unused", ["c4"]), ("unused", ["c6"])]
    assert sum(sum(branch["loss_mask"]) for branch in whole["branches"]) == 10
    assert whole["excluded"] == []
    assert whole["branches"][4]["forked_from"] == {"branch": "c9", "length": 5}


def test_a_prompt_that_was_tokenised_anew_starts_a_new_row() -> None:
    """The parent keeps what it said, and the row says how much the two still share."""
    tape = Tape()
    start = tape.root([1, 2], [10, 11])
    turn = tape.broken(start, [1, 2, 10, 99, 4], [12])

    found = document(tape)

    assert rows(found) == [("main", names([start])), ("main", names([turn]))]
    assert found["branches"][1]["links"] == [{"call_id": "c1", "parent_call_id": "c0", "reason": "not_extending"}]
    assert found["branches"][1]["forked_from"] == {"branch": "c0", "length": 3}
    assert found["health"]["not_extending"] == 1


def test_a_break_in_the_middle_forks_from_the_last_turn_that_still_holds() -> None:
    """What stands before the break is shared, not trained on twice."""
    tape = Tape()
    start = tape.root([1], [10])
    middle = tape.child(start, [2], [11])
    turn = tape.broken(middle, [*ids_of(start), 2, 99, 3], [12])

    found = document(tape)

    assert rows(found) == [("main", names([start, turn])), ("main", names([middle]))]
    assert found["branches"][1]["call_ids"] == names([start, middle])
    assert found["branches"][1]["forked_from"] == {"branch": "c2", "length": 3}


def test_nothing_shared_is_no_fork() -> None:
    """A new beginning has no length in common."""
    tape = Tape()
    start = tape.root([1], [10])
    tape.broken(start, [7, 8], [12])

    assert document(tape)["branches"][1]["forked_from"] is None


def test_a_mark_that_moves_among_tools_makes_no_lane() -> None:
    """Clients of Messages mark their newest cached part; what the engine saw of the tools stayed the same."""
    tape, seen = Tape(), {"tools": [{"type": "function", "function": {"name": "add"}}]}
    marks: list[dict[str, Any]] = [{}, {"cache_control": {"type": "ephemeral"}}]
    calls = [
        tape.root([1], [10 + place], request={"tools": [{"name": "add"} | mark]}, chat_request=seen)
        for place, mark in enumerate(marks)
    ]

    assert len({call.opening for call in read_calls(calls)}) == 1


def test_a_compacted_conversation_stays_in_the_main_lane() -> None:
    """By the header, or by system messages and tools where there is none."""
    for signals in (MAIN, {}):
        tape = Tape()
        start = tape.root([1], [10], lane_signals=signals)
        after = tape.root([2], [11], lane_signals=signals)

        assert rows(document(tape)) == [("main", names([start])), ("main", names([after]))]


def test_another_system_message_tells_a_sub_agent_where_no_header_does() -> None:
    """And it is trained on."""
    tape = Tape()
    start = tape.root([1], [10])
    sub = tape.root([2], [11], messages=[{"role": "system", "content": "You are a helper."}, make.user()])
    end = tape.child(start, [3], [12])

    found = document(tape)

    assert rows(found) == [("main", names([start, end])), ("subagent", names([sub]))]
    assert found["branches"][1]["trainable"] == {"value": True, "reasons": []}


def test_a_fork_is_owned_by_the_main_path() -> None:
    """Though the other child came first."""
    tape = Tape()
    start = tape.root([1], [10])
    side = tape.child(start, [2], [11])
    end = tape.child(start, [3], [12])

    found = document(tape)

    assert rows(found) == [("main", names([start, end])), ("main", names([side]))]
    assert found["main_path"] == {"branch": "c2", "call_id": "c2", "reason": "last_delivered_with_tools"}


def test_a_fork_beside_the_main_path_is_owned_by_its_earliest_child() -> None:
    """Here a sub-agent's."""
    tape = Tape()
    main = tape.root([9], [9], lane_signals=MAIN)
    start = tape.root([1], [10], lane_signals=FIRST_SUB)
    first = tape.child(start, [2], [11])
    second = tape.child(start, [3], [12])

    assert rows(document(tape)) == [
        ("main", names([main])),
        ("subagent", names([start, first])),
        ("subagent", names([second])),
    ]


def test_an_unresolved_call_is_joined_by_its_tokens() -> None:
    """Where it extends one call, whose ancestors it extends as well."""
    tape = Tape()
    start = tape.root([1], [10])
    middle = tape.child(start, [2], [11])
    end = tape.lost([*ids_of(middle), 3], [12])

    found = document(tape)

    assert rows(found) == [("main", names([start, middle, end]))]
    assert found["branches"][0]["links"][2]["reason"] == "by_tokens"
    assert (found["health"]["by_tokens"], found["health"]["unresolved"]) == (1, 0)


def test_what_extends_two_calls_is_not_joined() -> None:
    """Equal tokens prove neither; without a header it is an orphan, and not trained on."""
    tape = Tape()
    first, second = tape.root([1], [10]), tape.root([1], [10])
    lost = tape.lost([1, 10, 2], [11], reason="ambiguous")

    found = document(tape)

    assert rows(found) == [("main", names([first])), ("main", names([second])), ("orphan", names([lost]))]
    assert found["branches"][2]["trainable"] == {"value": False, "reasons": ["unresolved_ambiguous"]}
    assert sum(found["branches"][2]["loss_mask"]) == 0


def test_what_goes_on_from_an_orphan_is_one_too() -> None:
    """Even in a row of its own, with the reason of the call that was lost."""
    tape = Tape()
    tape.root([1], [10])
    lost = tape.lost([5], [11])
    tape.broken(lost, [6], [12])

    found = document(tape)

    assert [branch["kind"] for branch in found["branches"]] == ["main", "orphan", "orphan"]
    assert found["branches"][2]["trainable"]["reasons"] == ["unresolved_no_match"]


def test_a_header_places_a_call_whose_parent_was_not_found() -> None:
    """It is a row of its own lane."""
    tape = Tape()
    start = tape.root([1], [10], lane_signals=MAIN)
    lost = tape.lost([5], [11], lane_signals=MAIN)

    assert rows(document(tape)) == [("main", names([start])), ("main", names([lost]))]


def test_tokens_join_nothing_across_lanes() -> None:
    """A sub-agent that repeats the main agent's tokens is still another agent."""
    tape = Tape()
    start = tape.root([1], [10], lane_signals=MAIN)
    lost = tape.lost([*ids_of(start), 2], [11], lane_signals=FIRST_SUB)

    found = document(tape)

    assert rows(found) == [("main", names([start])), ("subagent", names([lost]))]
    assert found["branches"][1]["links"][0] == {"call_id": "c1", "parent_call_id": None, "reason": "no_match"}


def test_a_reply_without_ids_leaves_its_childs_row_whole_and_masks_all() -> None:
    """The child hangs from the nearest turn whose tokens it extends, and nothing of the rollout is trained on."""
    tape = Tape()
    start = tape.root([1], [10])
    bare = tape.broken(start, [1, 10, 2], [11], **without_ids())
    end = tape.broken(bare, [1, 10, 2, 11, 3], [12])

    found = document(tape)

    assert rows(found) == [("main", names([start, end]))]
    assert found["excluded"] == [{"call_id": "c1", "reason": "missing_ids"}]
    assert found["branches"][0]["links"][1]["reason"] == "parent_missing_ids"
    assert found["health"]["reasons"] == ["missing_ids"]
    assert masked(found["branches"][0]) == []
    assert found["branches"][0]["trainable"] == found["trainable"] == {"value": False, "reasons": ["missing_ids"]}


def test_a_reply_without_ids_masks_the_branches_of_every_lane() -> None:
    """A sub-agent's reply went into what the main agent did, and the other way round."""
    tape = Tape()
    tape.root([1], [10], lane_signals=MAIN)
    tape.root([2], [11], lane_signals=FIRST_SUB, **without_ids())
    tape.root([3], [12], lane_signals=SECOND_SUB)

    found = document(tape, include_all=True)

    assert [branch["trainable"]["reasons"] for branch in found["branches"]] == [["missing_ids"]] * 2
    assert found["health"]["trained_tokens"] == 0
    assert (found["health"]["complete"], found["health"]["reasons"]) == (False, ["missing_ids"])


def test_a_call_that_failed_for_want_of_ids_masks_nothing_else() -> None:
    """The harness never got the reply."""
    tape = Tape()
    tape.root([1], [10], **failed("missing_ids"))
    tape.root([1], [11])

    found = document(tape)

    assert found["trainable"]["value"]
    assert found["health"]["trained_tokens"] == 1


def test_logprobs_that_are_no_numbers_are_missing() -> None:
    """No row has a hole where its mask is 1."""
    tape = Tape()
    tape.root([1], [10], logprobs=[None])

    found = document(tape)

    assert found["trainable"] == {"value": False, "reasons": ["missing_ids"]}


def test_ids_with_gaps_are_not_trained_on() -> None:
    """Even where their counts happen to agree."""
    tape = Tape()
    tape.root([1], [10], capture={"complete": False, "gaps": ["fewer_ids_than_usage"]})

    assert document(tape)["excluded"] == [{"call_id": "c0", "reason": "missing_ids"}]


def test_failed_and_late_calls_are_excluded_by_their_own_word() -> None:
    """Whatever had arrived of them."""
    tape = Tape()
    tape.root([1], [10], **failed("engine_cut"))
    tape.root([1], [10], state="late")
    tape.root([1], [10], state="reserved")
    tape.root([1], [10])

    found = document(tape)

    assert [one["reason"] for one in found["excluded"]] == ["engine_cut", "late", "no_outcome_yet"]
    assert rows(found) == [("main", ["c3"])]


def test_a_reply_that_nobody_got_and_that_was_asked_again_is_a_retry() -> None:
    """The later draw is the policy's path."""
    tape = Tape()
    gone = tape.root([1], [10], context="same", deliveries=undelivered())
    again = tape.root([1], [11], context="same")

    found = document(tape, include_all=True)

    assert rows(found) == [("main", names([again])), ("retry", names([gone]))]
    assert document(tape)["excluded"] == [{"call_id": "c0", "reason": "retried"}]


def test_a_reply_that_nobody_got_and_that_is_echoed_is_kept() -> None:
    """The harness had enough of it to go on."""
    tape = Tape()
    gone = tape.root([1], [10], context="same", deliveries=undelivered())
    end = tape.child(gone, [2], [11])
    again = tape.root([1], [12], context="same")

    assert rows(document(tape)) == [("main", names([gone, end])), ("main", names([again]))]


def test_a_title_call_of_the_main_model_is_known_by_its_text() -> None:
    """Lone, short, without tools, and told to write a title."""
    tape = Tape()
    title = tape.root([5], [6], **title_call())
    start = tape.root([1], [10])

    found = document(tape)

    assert rows(found) == [("main", names([start]))]
    assert found["excluded"] == [{"call_id": title["call_id"], "reason": "side_rule_title_call"}]


@pytest.mark.parametrize("uncertain", ["keep", "drop"])
def test_what_only_looks_like_a_side_call_is_labelled(uncertain: str) -> None:
    """And kept, unless the rules say otherwise."""
    tape = Tape()
    tape.root([5], [6], has_tools=False)
    tape.root([1], [10])

    found = document(tape, include_all=True, side_uncertain=uncertain)

    (odd,) = (branch for branch in found["branches"] if branch["owned_call_ids"] == ["c0"])
    assert odd["maybe_side"]
    assert odd["trainable"]["value"] == (uncertain == "keep")
    assert found["main_path"]["call_id"] == "c1"


def test_a_configured_rule_excludes_what_it_matches() -> None:
    """By model, text or header; with its name in the reason."""
    by_header = SideRule("review", signals=(("x-openai-subagent", "rev*"),))
    by_model = SideRule("judge", requested_model="judge-*", has_tools=True)
    tape = Tape()
    tape.root([1], [10], lane_signals={"x-openai-subagent": "review"})
    tape.root([1], [10], requested_model="judge-7b")
    start = tape.root([1], [10])

    found = document(tape, side_rules=(by_header, by_model))

    assert rows(found) == [("main", names([start]))]
    assert [one["reason"] for one in found["excluded"]] == ["side_rule_review", "side_rule_judge"]


def test_without_a_model_name_nothing_is_taken_out() -> None:
    """However much it looks like a side call."""
    tape = Tape()
    tape.root([5], [6], **title_call(), requested_model=None)
    tape.root([1], [10])

    found = document(tape, side_uncertain="drop")

    assert found["excluded"] == []


def test_a_rollout_of_side_calls_only_is_not_trainable() -> None:
    """And says so."""
    tape = Tape()
    tape.root([5], [6])

    found = document(tape, side_rules=(SideRule("all", requested_model="*"),))

    assert found["trainable"] == {"value": False, "reasons": ["side_calls_only", "side_rule_all"]}


def test_an_empty_rollout_is_not_trainable() -> None:
    """There is nothing to train on."""
    assert document(Tape())["trainable"] == {"value": False, "reasons": ["no_calls"]}


def test_an_expired_rollout_is_not_trained_on() -> None:
    """Not by its masks either."""
    tape = Tape()
    tape.root([1], [10])

    found = document(tape, state="expired")

    assert found["trainable"] == {"value": False, "reasons": ["rollout_expired"]}
    assert masked(found["branches"][0]) == []


@pytest.mark.parametrize(("choice_", "trained"), [("mask", [11]), ("keep", [10, 11])])
def test_constrained_replies_are_masked_unless_kept(choice_: str, trained: list[int]) -> None:
    """Their spans are told in either case."""
    tape = Tape()
    start = tape.root([1, 2], [10], sampling={"constrained": ["tool_choice"]})
    tape.child(start, [3], [11])

    (branch,) = document(tape, constrained_training=choice_)["branches"]

    assert masked(branch) == trained
    assert branch["constrained_spans"] == [{"start": 2, "end": 3, "call_id": "c0", "fields": ["tool_choice"]}]


def test_a_row_with_nothing_but_constrained_replies_says_so() -> None:
    """It is not trainable under the default rules."""
    tape = Tape()
    tape.root([1], [10], sampling={"constrained": ["response_format"]})

    assert document(tape)["trainable"] == {"value": False, "reasons": ["constrained"]}


def test_of_last_choices_the_longest_is_the_path() -> None:
    """Nothing goes on from any, and they were delivered at once."""
    tape = Tape()
    start = tape.root([1], [10])
    short = tape.child(start, [2], [11])
    long = tape.call(short["prompt_token_ids"], [12, 13], parent=short["parent"], **choice(1, short))

    found = document(tape)

    assert rows(found) == [("main", names([start, long]))]
    assert found["excluded"] == [{"call_id": short["call_id"], "reason": "unused_choice"}]


def test_equal_deliveries_are_decided_by_generated_tokens() -> None:
    """And the reason says so."""
    tape = Tape()
    short = tape.root([1], [10])
    long = tape.root([1], [11, 12], deliveries=short["deliveries"])

    path = document(tape)["main_path"]

    assert (path["call_id"], path["reason"]) == (long["call_id"], "last_delivered_with_tools_tie_by_generated_tokens")


def test_without_tools_the_last_delivered_call_ends_the_main_path() -> None:
    """A rollout of plain chat has no side calls either."""
    tape = Tape()
    start = tape.root([1], [10], has_tools=False)
    tape.child(start, [2], [11], has_tools=False)

    found = document(tape)

    assert found["main_path"] == {"branch": "c1", "call_id": "c1", "reason": "last_delivered"}
    assert not found["branches"][0]["maybe_side"]


def test_a_sub_agent_that_forks_from_its_parents_conversation_owns_its_own_turns() -> None:
    """The parent's turn stays in the parent's lane."""
    tape = Tape()
    start = tape.root([1], [10], lane_signals=MAIN)
    sub = tape.child(start, [2], [11], lane_signals=FIRST_SUB)

    found = document(tape)

    assert rows(found) == [("main", names([start])), ("subagent", names([sub]))]
    assert found["branches"][1]["call_ids"] == names([start, sub])
    assert masked(found["branches"][1]) == [11]


def test_spans_stand_in_the_rows_own_positions() -> None:
    """Weights, seeds, and where a segment ended."""
    tape = Tape()
    halves = [
        {"start": 0, "end": 1, "seed": 5, "weight_version": "7", "engine": "e1"},
        {"start": 1, "end": 2, "seed": 6, "weight_version": "8", "engine": "e2"},
    ]
    start = tape.root([1, 2], [10], outcome={"reward": 1})
    tape.child(start, [3], [11, 12], segments=halves)

    (branch,) = document(tape)["branches"]

    assert [(span["start"], span["end"], span["weight_version"]) for span in branch["weight_spans"]] == [
        (2, 3, "7"),
        (4, 5, "7"),
        (5, 6, "8"),
    ]
    assert [(span["start"], span["seed"]) for span in branch["seeds"]] == [(2, 1000), (4, 5), (5, 6)]
    assert branch["call_outcomes"] == [{"call_id": "c0", "outcome": {"reward": 1}}]


def test_a_proxy_that_died_is_forgiven_once_the_conversation_was_answered() -> None:
    """Until then the capture is incomplete."""
    tape = Tape()
    tape.root([1], [10], context="same", **failed("proxy_died"))
    alone = document(tape)["health"]
    tape.root([1], [10], context="same")

    assert (alone["complete"], alone["reasons"]) == (False, ["proxy_died"])
    assert document(tape)["health"]["complete"]
