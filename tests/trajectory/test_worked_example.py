"""Two sub-agents at once, a best-of-n step and a title call: from sockets to rows, on a simulated engine."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine
from tests.served import served, settings_for
from tests.trajectory.example import check_example, lane_of, play


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(("supply", "rows"), [(True, [2, 2, 3]), (False, [1] * 7)], ids=["supplied", "rendered"])
def test_the_worked_example_ends_in_a_row_for_each_agent(
    kind: Any,
    supply: bool,  # noqa: FBT001
    rows: list[int],
    tmp_path: Path,
) -> None:
    """Two choices unused, the title left out; the masks sum to what the agents said.

    Where the template renders each turn anew the same tokens are trained on, and every turn is a row of its own.
    """
    profiles = {"train": {"prefix_supply": supply}}
    with FakeEngine(kind) as engine, served(settings_for(tmp_path, engine.url, profiles=profiles)) as proxy:
        rollout = proxy.rollout(rollout_id="r1")
        play(rollout, chat_template_kwargs={"enable_thinking": False})
        calls = rollout.calls()
        proxy.control.post("/rollouts/r1/finish")
        trajectory = proxy.control.get("/rollouts/r1/trajectory").json()
        why = proxy.control.get("/rollouts/r1/why").json()

    check_example(trajectory, calls)
    assert sorted(len(branch["owned_call_ids"]) for branch in trajectory["branches"]) == rows
    assert trajectory["health"]["prefix_supplied"] == (6 if supply else 0)
    excluded = {call["call_id"] for call in why["calls"] if call["findings"][0]["what"] == "excluded"}
    assert excluded == {one["call_id"] for one in trajectory["excluded"]}
    assert {lane_of(call) for call in calls} == {"main", "a-1", "a-2"}
