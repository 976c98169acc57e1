"""The joint on every template: right or refused, never wrong; and the published counts are those of a fresh run."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.joint.conversations import make_case
from tests.joint.families import templates
from tests.joint.oracle import MustRefuse
from tests.joint.table import SIZES, all_tallies, published, tables, tallies_of
from tests.joint.trial import Trial, battery, trials, try_case
from tests.joint.wrong import WRONG_JOINTS

EVERY_TEMPLATE = pytest.mark.parametrize("template", templates())
# Of the cases with a right tail, over all templates. Below it something was lost, whatever else is right.
LEAST_SHARE = 0.9


@EVERY_TEMPLATE
def test_no_tail_is_wrong(template: str) -> None:
    """Each supplied tail has the ids of the one right tail."""
    for trial in trials(template, SIZES["slice"]):
        assert trial.verdict != "wrong", str(trial)


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(templates())), st.randoms(use_true_random=False))
def test_no_tail_is_wrong_for_any_conversation(template: str, chance: random.Random) -> None:
    """The same, where chance and its shrinking choose the conversation."""
    case = make_case(template, "hypothesis", chance)
    if case is None:
        return
    trial = try_case(case)

    assert trial.verdict != "wrong", str(trial)


def test_the_published_slice_is_what_a_run_gives() -> None:
    """docs/joint.md counts what happens, and most that can be supplied is."""
    tallies = [each for template in templates() for each in tallies_of(template, SIZES["slice"])]
    able = [each for each in tallies if not each.must_refuse]

    assert published("slice") == tables(tallies)
    assert sum(each.verdict == "right" for each in able) >= LEAST_SHARE * len(able)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_published_whole_is_what_a_run_gives() -> None:
    """Ten times as many cases."""
    tallies = all_tallies(SIZES["whole"])

    assert not [each for each in tallies if each.verdict == "wrong"]
    assert published("whole") == tables(tallies)


@pytest.mark.parametrize("finder", WRONG_JOINTS, ids=lambda finder: finder.__name__)
def test_the_oracle_finds_wrong_joints_out(finder: object) -> None:
    """Difference of prefixes, count of end tokens, common end without checks: wrong again and again."""
    tried = [try_case(case, finder) for template in templates() for case in battery(template, 2)]
    wrong = [trial for trial in tried if trial.verdict == "wrong"]

    assert len(wrong) >= 8
    assert len({trial.case.family.name for trial in wrong}) >= 5


@pytest.mark.parametrize("change", ["a token less", "a token more", "twice the end"])
def test_the_oracle_finds_a_changed_tail_out(change: str) -> None:
    """Right tails, spoilt by a single token."""
    right = [trial for trial in trials("qwen3", SIZES["slice"]) if trial.verdict == "right"]

    assert right
    for trial in right:
        ids = trial.outcome.ids
        spoilt = {
            "a token less": ids[1:],
            "a token more": (*ids, ids[0]),
            "twice the end": (trial.case.sampled[-1], *ids),
        }
        tail = type(trial.outcome)(spoilt[change], trial.outcome.end, ())
        assert Trial(trial.case, tail, trial.expected).verdict == "wrong"


def test_a_tail_where_none_is_right_is_wrong() -> None:
    """Whatever its ids."""
    right = next(trial for trial in trials("qwen3", SIZES["slice"]) if trial.verdict == "right")

    assert Trial(right.case, right.outcome, MustRefuse("cut in reasoning")).verdict == "wrong"
