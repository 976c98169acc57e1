"""Each check of the joint is needed: with it taken out, some case goes wrong, or breaks, which no one overlooks."""

from functools import cache

import pytest

from proxy.request.joint_turn import Refused
from proxy.request.joint_words import BASES
from tests.joint.by_hand import by_hand, result, said, user
from tests.joint.case import Case
from tests.joint.families import templates
from tests.joint.mutants import Check, checks
from tests.joint.trial import trials, try_case

SIZE = 20
# Checks behind which another one refuses the same cases; they give the better reason. Without them nothing goes wrong.
SECOND_LINES = {
    "another_end: end is None": "the end must stand once in the template's own text, which is looked at next",
    "tail_depends_on_history: real != other": "the real tail must be the small render filled in, looked at next",
    "new_message_altered: not filled(real, pieces, [text_forms(text) for text in texts_of(turn.new)])": (
        "the tail is the real render's own, however it prints a text"
    ),
    "too_many_texts: len(texts_of(turn.new)) > MOST_TEXTS": "it saves time; a tail would be right without it",
    "text_not_split: not whole.startswith(before)": "the tail's text is compared as a whole, next",
}


def by_hand_cases() -> list[Case]:
    """Refusals that no battery brings about."""
    call = '<think>\nnonceaad\n</think>\n\n<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>\n'
    cut = {"end": None, "finish": "length in a call", "finish_reason": "length", "reasoning": "nonceaad"}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    return [
        by_hand("qwen3", [user("nonceaaa"), said("nonceaab"), user("nonceaac " + " ".join(BASES))]),
        by_hand("qwen2_5_vl", [user("nonceaaa"), said("nonceaab"), image, user("nonceaac")], wants_parts=True),
        by_hand("qwen3", [user("nonceaaa"), said(None), result("nonceaac")], sampled=()),
        by_hand("qwen3", [user("nonceaaa"), said("nonceaab", "aaz"), user("nonceaac")], wrote=f"{call}nonceaab", **cut),
    ]


@cache
def refused() -> list[tuple[Case, str]]:
    """Every case that the joint refuses, and the reason."""
    tried = [trial for template in templates() for trial in trials(template, SIZE)]
    tried += [try_case(case) for case in by_hand_cases()]
    return [(trial.case, trial.outcome.reason) for trial in tried if isinstance(trial.outcome, Refused)]


def is_caught(check: Check) -> bool:
    """Whether one of the cases that the joint refuses for this reason goes wrong without the check."""
    finder = check.removed()
    return any(_goes_wrong(case, finder) for case, reason in refused() if reason == check.reason)


def _goes_wrong(case: Case, finder: object) -> bool:
    try:
        return try_case(case, finder).verdict == "wrong"
    except (TypeError, ValueError, LookupError, AttributeError):
        return True


@pytest.mark.parametrize("check", checks(), ids=str)
def test_a_check_is_missed_when_it_is_taken_out(check: Check) -> None:
    """Unless it is a second line, which is told above."""
    assert is_caught(check) is (str(check) not in SECOND_LINES)


def test_every_second_line_is_a_check_that_there_is() -> None:
    """The list goes with the code."""
    assert set(SECOND_LINES) <= {str(check) for check in checks()}
