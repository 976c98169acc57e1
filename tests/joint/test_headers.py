"""Headers that count what stands before them, longer than the joint looks back for a turn's last word."""

from dataclasses import replace

import pytest

from proxy.request import joint
from tests.joint.own import NUMBERED
from tests.joint.trial import Trial, battery, try_case

LONG = "'of all the messages in this conversation, told one after another, here is number: '"
WORDY = NUMBERED.replace("'<|im_start|>' ~ loop.index", f"'<|im_start|>' ~ {LONG} ~ loop.index")
SIZE = 60


def tried(template: str) -> list[Trial]:
    """The battery of numbered turns, with a template of ours."""
    cases = battery("own_numbered", SIZE)
    return [try_case(replace(case, engine=replace(case.engine, template=template))) for case in cases]


def test_a_header_longer_than_the_look_back_is_never_wrong() -> None:
    """Behind the dummy the turn is not found; behind the real history it is, and the tail is right."""
    trials = tried(WORDY)

    assert WORDY != NUMBERED
    assert {trial.verdict for trial in trials} == {"right", "refused"}
    assert [trial.verdict for trial in trials] == [trial.verdict for trial in tried(NUMBERED)]


@pytest.mark.parametrize("look_back", [0, 1, 3])
def test_a_look_back_that_is_too_short_refuses(look_back: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn's last word that is not seen whole is not seen: nothing is taken for it."""
    monkeypatch.setattr(joint, "LOOK_BACK", look_back)
    trials = tried(WORDY)

    assert not [trial for trial in trials if trial.verdict == "wrong"]
    assert look_back or not [trial for trial in trials if trial.verdict == "right"]
