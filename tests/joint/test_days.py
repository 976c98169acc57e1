"""Templates that print the date: a tail tells none, and a midnight between two renders is never wrong."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import pytest

from proxy.request.joint import find_tail
from proxy.request.joint_turn import Habits, Refused
from tests.joint.by_hand import by_hand, said, user
from tests.joint.case import Case
from tests.joint.families import templates
from tests.joint.own import FOLDING
from tests.joint.trial import Outcome, answer_to, battery, turn_of

DAYS = date(2026, 11, 30), date(2026, 12, 1)
DATED = [name for name, source in templates().items() if "strftime_now" in source]
# In front of each message, so that every tail tells the day.
EVERYWHERE = FOLDING.replace("'<|im_start|>' + message.role", "'<|im_start|>' ~ strftime_now('%d') ~ message.role")
SIZE = 12


def found(case: Case, days: Sequence[date]) -> Outcome:
    """What the joint finds where the question of each number is answered on its day, the rest on the last."""
    habits = Habits()
    steps, number = find_tail(turn_of(case, habits), habits), 0
    try:
        questions = next(steps)
        while True:
            answers = []
            for question in questions:
                today = days[min(number, len(days) - 1)]
                answers.append(answer_to(question, replace(case, engine=replace(case.engine, today=today))))
                number += 1
            questions = steps.send(tuple(answers))
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


def ids(outcome: Outcome) -> tuple[int, ...] | None:
    return None if isinstance(outcome, Refused) else outcome.ids


@pytest.mark.parametrize("template", DATED)
def test_a_tail_is_the_same_on_every_day(template: str) -> None:
    """The date stands in front of the conversation, and the parent's own ids tell it."""
    pairs = [tuple(found(case, [day]) for day in DAYS) for case in battery(template, SIZE)]

    assert [ids(today) for today, _ in pairs] == [ids(tomorrow) for _, tomorrow in pairs]
    assert any(today != tomorrow for today, tomorrow in pairs), "a render of the whole request tells the day"


@pytest.mark.parametrize("template", ["gptoss", "everywhere"])
def test_a_midnight_between_two_renders_is_refused_or_does_not_matter(template: str) -> None:
    """Whichever question is the first of the new day, the tail tells one day, if any."""
    case = by_hand("own_folding", [user("nonceaaa"), said("nonceaab"), user("nonceaac")])
    if template == "everywhere":
        case = replace(case, engine=replace(case.engine, template=EVERYWHERE))
    else:
        wrote = "<|channel|>final<|message|>nonceaab"
        case = by_hand(template, [user("nonceaaa"), said("nonceaab"), user("nonceaac")], wrote=wrote)
    whole = {ids(found(case, [day])) for day in DAYS}

    assert None not in whole
    for late in range(12):
        assert ids(found(case, [DAYS[0]] * late + [DAYS[1]])) in whole | {None}
