"""Rules of a trainer's own about calls beside the task."""

import re
from pathlib import Path
from typing import Any

import pytest

from proxy.control.assembly import side_rules
from proxy.model import JsonObject
from proxy.settings import BUILT_IN_RULES
from proxy.settings_sources import load_settings
from proxy.trajectory.assemble import assemble
from proxy.trajectory.documents import trajectory_document
from proxy.trajectory.rules import BUILT_IN, SideRule, TrajectoryRules
from tests import make
from tests.trajectory.tape import Tape, title_call

PAGE = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text("utf-8")


def system(text: str) -> JsonObject:
    """Fields of a call that is told this first."""
    return {"messages": [{"role": "system", "content": text}, make.user()]}


def document(tape: Tape, *rules: SideRule, **more: Any) -> JsonObject:
    """The trajectory of a tape under these rules alone."""
    ruled = TrajectoryRules(side_rules=rules, **more)
    return trajectory_document(assemble(make.rollout(state="finished"), tape.calls, ruled))


def excluded(tape: Tape, *rules: SideRule, **more: Any) -> dict[str, str]:
    """What is left out, and why."""
    return {one["call_id"]: one["reason"] for one in document(tape, *rules, **more)["excluded"]}


@pytest.mark.parametrize(
    ("rule", "matched"),
    [
        (SideRule("r", requested_model="small-*"), {"c1"}),
        (SideRule("r", system_contains="SUMMARISE"), {"c2"}),
        (SideRule("r", system_matches=re.compile(r"\bsummari[sz]e\b")), {"c2"}),
        (SideRule("r", signals=(("user-agent", "opencode/*"),)), {"c3"}),
        (SideRule("r", signals=(("user-agent", "opencode/*"), ("x-session-id", "*"))), set()),
        (SideRule("r", signals=(("x-session-id", "*"),)), set()),
        (SideRule("r", has_tools=False), {"c4"}),
        (SideRule("r", most_messages=1), {"c5"}),
        (SideRule("r", alone=True), {"c4"}),
        (SideRule("r", has_tools=False, requested_model="small-*"), set()),
    ],
)
def test_every_condition_that_is_given_must_hold(rule: SideRule, matched: set[str]) -> None:
    """Of model, text, headers, tools and length."""
    tape = Tape()
    tape.root([1], [10])
    tape.root([1], [10], requested_model="small-1")
    tape.root([1], [10], **system("You summarise."))
    tape.root([1], [10], lane_signals={"user-agent": "opencode/1.18"})
    tape.root([1], [10], has_tools=False)
    tape.root([1], [10], messages=[make.user()])

    assert excluded(tape, rule) == dict.fromkeys(matched, "side_rule_r")


def test_the_first_rule_that_matches_decides() -> None:
    """A call that is to be kept is safe from all rules below, the built-in ones too."""
    keep, drop = SideRule("mine", "keep", requested_model="judge-*"), SideRule("all", requested_model="*")
    tape = Tape()
    tape.root([1], [10])
    tape.root([2], [11], requested_model="judge-1", has_tools=False)

    assert excluded(tape, keep) == {}
    assert excluded(tape, keep, drop) == {"c0": "side_rule_all"}
    assert excluded(tape, drop, keep) == {"c0": "side_rule_all", "c1": "side_rule_all"}
    assert excluded(tape) == {"c1": "side_other_model"}


def test_a_label_keeps_a_call_with_the_rules_name() -> None:
    """Unless doubtful calls are to be dropped; the main path ends elsewhere."""
    label = SideRule("odd", "label", system_contains="odd")
    tape = Tape()
    tape.root([1], [10])
    tape.root([2], [11], **system("An odd one."))

    kept, dropped = document(tape, label), document(tape, label, side_uncertain="drop")

    odd = kept["branches"][1]
    assert (odd["maybe_side"], odd["side_reason"], odd["trainable"]["value"]) == (True, "side_rule_odd", True)
    assert kept["main_path"]["call_id"] == "c0"
    assert dropped["excluded"] == [{"call_id": "c1", "reason": "side_rule_odd"}]


def test_a_branch_is_labelled_by_any_of_its_calls() -> None:
    """Also where the doubt is about one in its middle."""
    tape = Tape()
    start = tape.root([1], [10], requested_model="odd")
    tape.child(start, [2], [11])

    (branch,) = document(tape, SideRule("odd", "label", requested_model="odd"))["branches"]

    assert branch["side_reason"] == "side_rule_odd"


def test_a_call_that_names_no_model_is_labelled_and_never_taken_out() -> None:
    """Whatever the rule asks for."""
    tape = Tape()
    tape.root([1], [10])
    tape.root([2], [11], **title_call(), requested_model=None)

    found = document(tape, SideRule("any", has_tools=False), side_uncertain="drop")

    assert found["excluded"] == []
    assert found["branches"][1]["side_reason"] == "side_rule_any"


def test_what_harnesses_do_for_themselves_is_known_by_its_words() -> None:
    """Aider's commit messages, though no call of it has tools; Qwen Code's memory agent, though it has them."""
    tape = Tape()
    tape.root([1], [10], has_tools=False, **system("Act as an expert. Git commit messages are not your task."))
    commit = "You are an engineer that generates concise, one-line Git commit messages based on the provided diffs."
    tape.root([2], [11], has_tools=False, **system(commit))
    memory = system("You are now acting as the managed memory extraction subagent.")
    tape.child(tape.root([3], [12], **memory), [4], [13], **memory)

    assert excluded(tape, *BUILT_IN) == {
        "c1": "side_rule_commit_message",
        "c2": "side_rule_memory_extraction",
        "c3": "side_rule_memory_extraction",
    }
    assert excluded(tape) == {}


def test_every_built_in_rule_has_a_switch() -> None:
    """Which is named where one's own rule takes its name."""
    assert set(BUILT_IN_RULES) == {rule.name for rule in BUILT_IN}


def test_the_rules_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    """Title calls of Claude Code and opencode go, a judge of the harness stays; the built-in rule comes last."""
    shown = PAGE.partition("<!-- side calls -->\n```toml\n")[2].partition("\n```")[0]
    (tmp_path / "rollpin.toml").write_text(shown)
    rules = side_rules(load_settings(config=tmp_path / "rollpin.toml", to_serve=False))
    claude, opencode = ({"user-agent": agent} for agent in ("claude-cli/2.1.332 (external)", "opencode/1.18.33"))
    tape = Tape()
    tape.root([1], [10], lane_signals=claude, **system("You are Claude Code. Titles are not your task."))
    lone = {"has_tools": False, "request": {}}
    tape.root([2], [11], lane_signals=claude, **lone, **system("Write a short title for this conversation."))
    tape.root([3], [12], lane_signals=opencode, **lone, **system("You are a title generator."))
    tape.root([4], [13], lane_signals=claude, **lone, **system("You judge."), requested_model="judge-large")
    tape.root([5], [14], **lone, **system("A title, please."))

    assert rules[-len(BUILT_IN) :] == BUILT_IN
    assert excluded(tape, *rules) == {
        "c1": "side_rule_claude_code_title",
        "c2": "side_rule_opencode_title",
        "c4": "side_rule_title_call",
    }


def test_built_in_rules_can_be_switched_off() -> None:
    """Each by its own setting."""
    off = [f"--no-{switch.replace('_', '-')}" for switch in sorted(set(BUILT_IN_RULES.values()))]

    assert [one.name for one in side_rules(load_settings(off[:1], to_serve=False))] == ["title_call"]
    assert side_rules(load_settings(off, to_serve=False)) == ()
