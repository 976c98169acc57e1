"""Trajectories over the control plane: one rollout, and the lines of closed groups."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.control import assembly, trajectories
from proxy.model import CallId, Parent
from tests import make
from tests.control.conftest import Control, Told
from tests.served import READER

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text("utf-8")


async def said(
    control: Control, rollout_id: str, prompt: tuple[int, ...], answer: tuple[int, ...], **plan: Any
) -> CallId:
    """A recorded and delivered call of this rollout."""
    planned = make.plan(make.ask(of=make.rollout(rollout_id)), **plan)
    asking = make.reservation(planned)
    planned = make.reserved(planned, await control.wiring.store.reserve(asking))
    await control.wiring.store.record([make.call(planned, make.completion(prompt, answer))])
    ended_at = make.STARTED_AT + len(prompt)
    await control.wiring.store.deliver(make.delivery(asking.delivery_id, ended_at=ended_at))
    return planned.call_id


async def lines(control: Control, **query: Any) -> list[dict[str, Any]]:
    """What GET /trajectories answers."""
    answer = await control.ask("GET", "/trajectories", token=READER, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [line["trajectory"]["rollout_id"] for line in found]


async def group(control: Control, name: str, size: int = 2, *, finish: bool = True) -> list[str]:
    """A group, closed unless told otherwise."""
    answer = await control.ask("POST", "/groups", json={"group": name, "size": size})
    assert answer.status_code == 201, answer.text
    opened = [rollout["rollout_id"] for rollout in answer.json()["rollouts"]]
    if finish:
        await finished(control, *opened)
    return opened


async def finished(control: Control, *rollout_ids: str) -> None:
    for rollout_id in rollout_ids:
        assert (await control.ask("POST", f"/rollouts/{rollout_id}/finish")).status_code == 200


async def test_a_rollout_is_assembled_from_what_the_store_holds(control: Control) -> None:
    """Documents of the store are what assembly reads; the read token will do."""
    await control.opened("r1")
    first = await said(control, "r1", (1, 2), (10, 11))
    second = await said(control, "r1", (1, 2, 10, 11, 3), (12,), parent=Parent("resolved", "one_match", first))

    answer = await control.ask("GET", "/rollouts/r1/trajectory", token=READER)

    assert answer.status_code == 200, answer.text
    (branch,) = answer.json()["branches"]
    assert branch["owned_call_ids"] == [first, second]
    assert branch["token_ids"] == [1, 2, 10, 11, 3, 12]
    assert branch["loss_mask"] == [0, 0, 1, 1, 0, 1]
    assert branch["logprobs"] == [0, 0, -0.5, -0.5, 0, -0.5]
    assert answer.json()["main_path"]["call_id"] == second


async def test_all_shows_what_is_left_out_otherwise(control: Control) -> None:
    """Here a reply that nobody got, and its second try."""
    await control.opened("r1")
    planned = make.plan(make.ask(of=make.rollout("r1")))
    asking = make.reservation(planned)
    given = await control.wiring.store.reserve(asking)
    await control.wiring.store.record([make.call(make.reserved(planned, given))])
    await control.wiring.store.deliver(make.delivery(asking.delivery_id, "client_gone"))
    await said(control, "r1", (101, 102, 103), (7,))

    short = (await control.ask("GET", "/rollouts/r1/trajectory")).json()
    whole = (await control.ask("GET", "/rollouts/r1/trajectory", params={"include": "all"})).json()

    assert short["excluded"] == [{"call_id": planned.call_id, "reason": "retried"}]
    assert [branch["kind"] for branch in short["branches"]] == ["main"]
    assert [branch["kind"] for branch in whole["branches"]] == ["main", "retry"]


async def test_a_rollout_of_many_pages_is_read_to_its_end(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls it has."""
    monkeypatch.setattr(assembly, "CALLS_A_PAGE", 2)
    await control.opened("r1")
    for _ in range(5):
        await said(control, "r1", (1,), (2,))

    found = (await control.ask("GET", "/rollouts/r1/trajectory")).json()

    assert found["health"]["calls"] == 5


async def test_unknown_and_deleted_rollouts_have_no_trajectory(control: Control) -> None:
    """404 and 410; and a misspelt query is refused."""
    await control.opened("r1")
    assert (await control.ask("GET", "/rollouts/r1/trajectory", params={"include": "some"})).status_code == 400
    await control.ask("DELETE", "/rollouts/r1")

    assert (await control.ask("GET", "/rollouts/r1/trajectory")).status_code == 410
    assert (await control.ask("GET", "/rollouts/none/trajectory")).status_code == 404
    assert (await control.ask("GET", "/trajectories", token=None)).status_code == 401


async def test_a_group_is_told_once_all_its_rollouts_are_closed(control: Control) -> None:
    """By sample, and not before."""
    opened = await group(control, "g", finish=False)
    await finished(control, opened[1])
    assert await lines(control) == []

    await finished(control, opened[0])

    assert ids(await lines(control)) == opened


async def test_lines_go_on_from_a_cursor(control: Control) -> None:
    """Each group once, whichever closed first."""
    slow = await group(control, "slow", finish=False)
    fast = await group(control, "fast")
    first = await lines(control)
    await finished(control, *slow)
    late = await group(control, "late")

    second = await lines(control, since=first[-1]["cursor"])

    assert ids(first) == fast
    assert ids(second) == [*slow, *late]
    assert await lines(control, since=second[-1]["cursor"]) == []


async def test_who_goes_on_within_a_group_is_told_it_again(control: Control) -> None:
    """A group comes whole or again."""
    opened = await group(control, "g")
    found = await lines(control)

    assert ids(await lines(control, since=found[0]["cursor"])) == opened


async def test_a_cursor_forgets_what_lies_behind_it(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length follows the groups that are still open, not all that ever were."""
    monkeypatch.setattr(trajectories, "ROLLOUTS_A_PAGE", 3)
    told = list[str]()
    for number in range(12):
        told += await group(control, f"g{number}")
    found = await lines(control)
    cursor = trajectories.read_cursor(trajectories.TrajectoriesQuery(since=found[-1]["cursor"]))

    assert ids(found) == told
    assert len(cursor.told) <= 3
    assert await lines(control, since=found[-1]["cursor"]) == []
    assert ids(await lines(control, since=found[11]["cursor"])) == told[12:]


async def test_no_group_is_lost_or_told_twice_however_they_close(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that looks now and then, over small pages, with groups that close out of order."""
    monkeypatch.setattr(trajectories, "ROLLOUTS_A_PAGE", 2)
    groups = [await group(control, f"g{number}", size=1 + number % 3, finish=False) for number in range(7)]
    told, cursor = list[str](), dict[str, str]()
    for number in (4, 0, 6, 1, 3, 2, 5):
        await finished(control, *groups[number])
        found = await lines(control, **cursor)
        told += ids(found)
        cursor = {"since": found[-1]["cursor"]} if found else cursor

    assert sorted(told) == sorted(one for members in groups for one in members)


async def test_lines_can_wait_for_outcomes(control: Control) -> None:
    """A group without its rewards does not hold up the next."""
    first, second = await group(control, "one", 1), await group(control, "two", 1)
    await control.ask("PUT", f"/rollouts/{second[0]}/outcome", json={"reward": 1})
    found = await lines(control, require_outcome="true")
    await control.ask("PUT", f"/rollouts/{first[0]}/outcome", json={"reward": 0})

    rest = await lines(control, require_outcome="true", since=found[-1]["cursor"])

    assert ids(found) == second
    assert ids(rest) == first
    assert rest[0]["trajectory"]["outcome"] == {"reward": 0}


async def test_lines_are_narrowed_by_run_and_group(control: Control) -> None:
    """And a cursor is good for the query that gave it only."""
    await control.opened("a", run="one", group="g")
    await control.opened("b", run="two", group="g")
    await finished(control, "a", "b")

    found = await lines(control, run="two", group="g")

    assert ids(found) == ["b"]
    answer = await control.ask("GET", "/trajectories", params={"since": found[0]["cursor"]})
    assert answer.status_code == 400


async def test_followed_lines_come_as_groups_close(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the time is over, which here passes between two looks alone."""
    opened = await group(control, "g", finish=False)
    listing, looks, now = trajectories._listing, list[float](), 0.0

    async def closing(*asked: Any) -> Any:
        looks.append(now)
        if len(looks) == 2:
            await finished(control, *opened)
        return await listing(*asked)

    async def wait(_wiring: Any, seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(trajectories, "ticks", lambda: now)
    monkeypatch.setattr(trajectories, "_pause", wait)
    monkeypatch.setattr(trajectories, "_listing", closing)

    assert ids(await lines(control, follow="3.5")) == opened
    assert looks == [0, 1, 2, 3, 3.5]


async def test_a_line_is_of_the_revision_that_it_names(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outcome that is set while a rollout is read makes the reading begin anew."""
    (rollout_id,) = await group(control, "g", 1)
    reading, set_once = assembly.facts_of, list[bool]()

    async def judged(*asked: Any) -> Any:
        calls = await reading(*asked)
        if not set_once:
            set_once.append(True)
            await control.ask("PUT", f"/rollouts/{rollout_id}/outcome", json={"reward": 1})
        return calls

    monkeypatch.setattr(assembly, "facts_of", judged)
    (line,) = await lines(control)

    assert (line["trajectory"]["outcome"], line["trajectory"]["revision"]) == ({"reward": 1}, 1)


async def test_a_rollout_that_is_deleted_while_it_is_read_is_left_out(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row without its calls would look like a rollout that made none."""
    await group(control, "g", 1)
    reading = assembly.facts_of

    async def deleted(*asked: Any) -> Any:
        await control.ask("DELETE", "/rollouts/g-0")
        return await reading(*asked)

    monkeypatch.setattr(assembly, "facts_of", deleted)

    assert await lines(control) == []


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"since": "abc"}, "since"),
        ({"since": "é"}, "since"),
        ({"since": "W10"}, "since"),
        ({"follow": "-1"}, "follow"),
        ({"follow": "nan"}, "follow"),
        ({"follow": "ever"}, "follow"),
        ({"require_outcome": "maybe"}, "require_outcome"),
        ({"grup": "g"}, "grup"),
    ],
)
async def test_a_bad_query_is_one_readable_line(control: Control, told: Told, query: dict[str, str], word: str) -> None:
    """Found before the first line is sent."""
    answer = await control.ask("GET", "/trajectories", params=query)

    assert answer.status_code == 400
    assert word in told(answer)


async def test_the_pages_examples_do_what_they_show(control: Control) -> None:
    """With the token that they name."""
    await control.opened("step-12-task-7-0", run="monday", group="step-12-task-7")
    shown = re.findall(r'^curl "\$PROXY([^"]+)" -H "Authorization: Bearer \$READ"$', PAGE, re.MULTILINE)

    assert len(shown) == 2
    for path in shown:
        assert (await control.ask("GET", path, token=READER)).status_code == 200, path
