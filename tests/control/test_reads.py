"""What reads show of rollouts and calls."""

import re

import pytest

from proxy.control.reads import health_document
from proxy.model import CallId
from proxy.record.store import RolloutCounts
from tests import make
from tests.control.conftest import Control, Told

pytestmark = pytest.mark.anyio

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def completed_call(control: Control, rollout_id: str) -> CallId:
    """A recorded call of this rollout."""
    planned = make.plan(make.ask(of=make.rollout(rollout_id)))
    given = await control.wiring.store.reserve(make.reservation(planned))
    await control.wiring.store.record([make.call(make.reserved(planned, given))])
    return planned.call_id


async def test_a_rollout_shows_where_it_stands(control: Control) -> None:
    """State, counts, health, and times that people can read."""
    await control.opened("r1", ttl_s=60)
    await completed_call(control, "r1")

    shown = (await control.ask("GET", "/rollouts/r1")).json()

    assert shown["state"] == "open"
    assert (shown["counts"]["calls"], shown["counts"]["completed"]) == (1, 1)
    assert shown["counts"]["completion_tokens"] == 3
    assert shown["health"] == {"complete": True, "reasons": []}
    assert RFC_3339.fullmatch(shown["created_at"])
    assert RFC_3339.fullmatch(shown["expires_at"])
    assert shown["finished_at"] is None


async def test_a_call_without_outcome_leaves_the_capture_incomplete(control: Control) -> None:
    """Until it ends, or is recorded as dead."""
    await control.opened("r1")
    planned = make.plan(make.ask(of=make.rollout("r1")))
    await control.wiring.store.reserve(make.reservation(planned))

    running = (await control.ask("GET", "/rollouts/r1")).json()["health"]
    await control.wiring.store.sweep(make.STARTED_AT + 1e9)
    dead = (await control.ask("GET", "/rollouts/r1")).json()["health"]

    assert running == {"complete": False, "reasons": ["no_outcome_yet"]}
    assert dead == {"complete": False, "reasons": ["proxy_died"]}


@pytest.mark.parametrize(
    ("counts", "reasons"),
    [
        (RolloutCounts(), []),
        (RolloutCounts(failed=1, failures=(("client_gone", 1),)), []),
        (RolloutCounts(late=1), ["late_results"]),
        (RolloutCounts(reserved=1), ["no_outcome_yet"]),
        (RolloutCounts(failures=(("proxy_died", 1),)), ["proxy_died"]),
        (RolloutCounts(failures=(("missing_ids", 1),)), ["missing_ids"]),
        (RolloutCounts(uncaptured=1, reserved=1), ["no_outcome_yet", "missing_ids"]),
    ],
)
async def test_health_names_what_is_not_on_record(counts: RolloutCounts, reasons: list[str]) -> None:
    """A failure that was recorded whole takes nothing from it."""
    assert health_document(counts) == {"complete": not reasons, "reasons": reasons}


async def test_rollouts_come_in_pages_in_order_of_creation(control: Control) -> None:
    """The cursor of the last page is null."""
    for number in range(5):
        await control.opened(f"r{number}")

    pages, cursor = list[list[str]](), dict[str, str]()
    while True:
        page = (await control.ask("GET", "/rollouts", params={"limit": 2, **cursor})).json()
        pages.append([rollout["rollout_id"] for rollout in page["rollouts"]])
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}

    assert pages == [["r0", "r1"], ["r2", "r3"], ["r4"]]


async def test_rollouts_are_narrowed_by_run_group_and_state(control: Control) -> None:
    """Deleted ones are shown only where they are asked for."""
    await control.opened("a", run="one", group="g")
    await control.opened("b", run="two", group="g")
    await control.opened("c", run="two", group="h")
    await control.ask("POST", "/rollouts/b/finish")
    await control.ask("DELETE", "/rollouts/c")

    async def ids(**query: str) -> list[str]:
        page = (await control.ask("GET", "/rollouts", params=query)).json()
        return [rollout["rollout_id"] for rollout in page["rollouts"]]

    assert await ids() == ["a", "b"]
    assert await ids(run="two") == ["b"]
    assert await ids(group="g", run="one") == ["a"]
    assert await ids(state="finished") == ["b"]
    assert await ids(state="deleted") == ["c"]


async def test_a_bad_query_is_one_readable_line(control: Control, told: Told) -> None:
    """Misspelt keys are refused: they would show everything instead of what was meant."""
    for query, word in [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"state": "closed"}, "state"),
        ({"cursor": "xyz"}, "cursor"),
        ({"cursor": "-1"}, "cursor"),
        ({"grup": "g"}, "grup: no such field"),
    ]:
        answer = await control.ask("GET", "/rollouts", params=query)
        assert answer.status_code == 400, query
        assert word in told(answer), query


async def test_calls_come_in_pages_and_one_by_one(control: Control) -> None:
    """Both show the same document."""
    await control.opened("r1")
    ids = [await completed_call(control, "r1") for _ in range(3)]

    first = (await control.ask("GET", "/rollouts/r1/calls", params={"limit": 2})).json()
    rest = (await control.ask("GET", "/rollouts/r1/calls", params={"cursor": first["cursor"]})).json()
    alone = (await control.ask("GET", f"/calls/{ids[0]}")).json()

    assert [call["call_id"] for call in first["calls"] + rest["calls"]] == ids
    assert rest["cursor"] is None
    assert alone == first["calls"][0]
