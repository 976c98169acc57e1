"""What the joint learned of a template from one turn must not mislead it at another."""

from collections import defaultdict

import pytest

from proxy.request.joint_turn import Habits
from tests.joint.families import templates
from tests.joint.trial import battery, try_case

SIZE = 10


@pytest.mark.parametrize("template", templates())
def test_no_tail_is_wrong_whatever_was_learned_before(template: str) -> None:
    """As in a proxy that runs: one memory for each template and its arguments, through all turns."""
    memories = defaultdict[str, Habits](Habits)
    for case in battery(template, SIZE):
        arguments = {name: value for name, value in case.engine.variables.items() if name != "tools"}
        trial = try_case(case, habits=memories[f"{case.engine.kind} {arguments}"])

        assert trial.verdict != "wrong", str(trial)
