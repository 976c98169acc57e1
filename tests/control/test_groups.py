"""Opening the rollouts of one task together."""

from typing import Any

import pytest

from proxy.control.bodies import LARGEST_GROUP
from tests.control.conftest import Control, Told

pytestmark = pytest.mark.anyio

BAD_BODIES: list[tuple[Any, str]] = [
    ({"size": 2}, "group"),
    ({"group": "g"}, "size"),
    ({"group": "g", "size": 0}, "size"),
    ({"group": "g", "size": LARGEST_GROUP + 1}, "size"),
    ({"group": "g", "size": "2"}, "size"),
    ({"group": "g", "size": True}, "size"),
    ({"group": "", "size": 2}, "group"),
    ({"group": "g", "size": 2, "sample": 1}, "sample: no such field"),
    ({"group": "g", "size": 2, "rollout_ids": ["a"]}, "rollout_ids"),
    ({"group": "g", "size": 2, "rollout_ids": ["a", "a"]}, "rollout_ids"),
    ({"group": "g", "size": 2, "rollout_ids": ["a", "b/c"]}, "rollout id"),
    ({"group": "g", "size": 2, "rollout_ids": ["a", 1]}, "rollout_ids"),
    ({"group": "g", "size": 2, "sampling": {"temperature": 9}}, "temperature"),
]


async def group_ids(control: Control, **fields: Any) -> list[str]:
    """The ids of a new group's rollouts."""
    answer = await control.ask("POST", "/groups", json=fields)
    assert answer.status_code == 201, answer.text
    return [rollout["rollout_id"] for rollout in answer.json()["rollouts"]]


async def test_a_group_is_its_samples_in_order(control: Control) -> None:
    """Each with its own address and key."""
    answer = await control.ask("POST", "/groups", json={"group": "g", "size": 3, "metadata": {"task": 1}})

    document = answer.json()
    grants = document["rollouts"]
    assert answer.status_code == 201
    assert (document["group"], document["warnings"]) == ("g", [])
    assert [(grant["rollout_id"], grant["group"], grant["sample"]) for grant in grants] == [
        ("g-0", "g", 0),
        ("g-1", "g", 1),
        ("g-2", "g", 2),
    ]
    assert len({grant["api_key"] for grant in grants}) == 3
    assert all(rollout["metadata"] == {"task": 1} for rollout in await control.all_rollouts())


async def test_readable_ids_tell_attempts_and_runs_apart(control: Control) -> None:
    """A rerun of the same groups is a new run, and must not find its ids taken."""
    ids = [
        await group_ids(control, group="g", size=1),
        await group_ids(control, group="g", size=1, attempt=1),
        await group_ids(control, group="g", size=1, run="second"),
        await group_ids(control, group="g", size=1, run="second", attempt=1),
    ]

    assert ids == [["g-0"], ["g-0-a1"], ["second:g-0"], ["second:g-0-a1"]]


@pytest.mark.parametrize("group", ["task 7", "a/b", "ä", "g" * 199])
async def test_a_group_whose_name_makes_no_id_gets_minted_ones(control: Control, group: str) -> None:
    """Any printable name will do for a group."""
    ids = await group_ids(control, group=group, size=2)

    assert all(rollout_id.startswith("ro_") for rollout_id in ids)


async def test_ids_may_be_given(control: Control) -> None:
    """One for each sample, in order."""
    ids = await group_ids(control, group="g", size=2, rollout_ids=["x", "y"])

    assert ids == ["x", "y"]


async def test_a_bad_body_opens_nothing(control: Control, told: Told) -> None:
    """All of a group's rollouts or none."""
    for body, word in BAD_BODIES:
        answer = await control.ask("POST", "/groups", json=body)

        assert answer.status_code == 400, body
        assert word in told(answer), body
    assert await control.all_rollouts() == []


async def test_one_place_that_is_taken_keeps_the_whole_group_out(control: Control, told: Told) -> None:
    """Half a group would be compared with itself."""
    await control.opened("r1", group="g", sample=1)

    answer = await control.ask("POST", "/groups", json={"group": "g", "size": 3})

    assert answer.status_code == 409
    assert "sample 1" in told(answer)
    assert [rollout["rollout_id"] for rollout in await control.all_rollouts()] == ["r1"]


async def test_the_same_idempotency_key_answers_the_same_group(control: Control) -> None:
    """Minted ids included."""
    headers, body = {"idempotency-key": "k1"}, {"group": "task 7", "size": 2}

    first = await control.ask("POST", "/groups", headers=headers, json=body)
    again = await control.ask("POST", "/groups", headers=headers, json=body)
    other = await control.ask("POST", "/groups", headers=headers, json={**body, "size": 3})

    assert first.json() == again.json()
    assert [first.status_code, again.status_code, other.status_code] == [201, 201, 409]
    assert len(await control.all_rollouts()) == 2


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"top_k": 1}])
async def test_a_greedy_group_of_more_than_one_is_warned_of(
    control: Control, size: int, sampling: dict[str, float]
) -> None:
    """Its samples will be identical, so there is nothing to compare; told even before any engine is known."""
    control.wiring.pool.engines[0].ref = None

    answer = await control.ask("POST", "/groups", json={"group": "g", "size": size, "sampling": sampling})

    assert any("identical" in warning for warning in answer.json()["warnings"]) is (size > 1)


async def test_the_largest_group_is_opened_at_once(control: Control) -> None:
    """Big groups are one write."""
    ids = await group_ids(control, group="g", size=LARGEST_GROUP)

    assert ids[-1] == f"g-{LARGEST_GROUP - 1}"
