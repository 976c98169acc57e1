"""The group-collapse alarm: two samples of a group that drew the same first reply."""

import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.metrics import REGISTRY
from proxy.model import Completion, GroupFlag, Parent, Profile, Rollout
from proxy.record.opening import store_at
from proxy.record.store import Store
from tests import make
from tests.contracts.harness import Harness
from tests.fakes import FakeEngine, Say
from tests.served import ServedProxy, served, settings_for

LONG = make.completion(answer=tuple(range(200, 240)))
"""Forty tokens at logprob -0.5 each: no two honest draws come out like this."""
SAID = Say("a reply that is far too long for two honest draws to come out the same by chance alone")


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = store_at(store_url, "wal")
    await opened.open()
    yield opened
    await opened.close()


async def first_turn(store: Store, of: Rollout, completion: Completion = LONG, **changes: Any) -> Any:
    """Flags that the first turn of a new rollout raises."""
    (rollout,) = await store.create_rollouts([of])
    return await turn(store, rollout, completion, **changes)


async def turn(store: Store, rollout: Rollout, completion: Completion = LONG, **changes: Any) -> Any:
    """Flags that one turn raises."""
    harness, messages = Harness(store, rollout), changes.pop("messages", ())
    return await harness.reply(await harness.ask(*messages, **changes), completion)


def sample(number: int, **changes: Any) -> Rollout:
    """A rollout of group g."""
    fields = {"group": "g", "sample": number} | changes
    return make.rollout(f"{fields['group']}-{number}-{len(changes)}", **fields)


@pytest.mark.anyio
async def test_two_samples_that_say_the_same_raise_a_flag_once(store: Store) -> None:
    """With the rollouts and calls that it is about; the third of a kind is no news."""
    assert await first_turn(store, sample(0)) == ()
    (flag,) = await first_turn(store, sample(1))
    assert await first_turn(store, sample(2)) == ()

    calls = [(await store.calls(sample(number).rollout_id, None, 1)).items[0]["call_id"] for number in (0, 1)]
    assert flag == GroupFlag("collapsed", make.STARTED_AT + 0.2, {"rollouts": ["g-0-0", "g-1-0"], "calls": calls})
    assert await store.group_flags("default", "g") == (flag,)
    assert await store.group_flags("default", "other") == ()


@pytest.mark.anyio
async def test_a_repeated_commit_raises_no_second_flag(store: Store) -> None:
    """Its acknowledgement was lost."""
    await first_turn(store, sample(0))
    (rollout,) = await store.create_rollouts([sample(1)])
    harness = Harness(store, rollout)
    asked = await harness.ask()

    assert [len(await harness.reply(asked)) for _ in range(2)] == [0, 0]
    asked = await harness.ask(make.user("else"))
    assert [len(await harness.reply(asked, LONG)) for _ in range(2)] == [0, 0]


NO_ALARM: dict[str, dict[str, Any]] = {
    "another reply": {"completion": make.completion(answer=tuple(range(300, 320)))},
    "another conversation": {"messages": (make.user("else"),)},
    "a later turn": {"parent": Parent("resolved", "exact", None)},
    "a greedy profile": {"profile": Profile("train", temperature=0)},
    "gaps in its capture": {"completion": replace(LONG, capture_gaps=("usage_missing",))},
}


@pytest.mark.anyio
@pytest.mark.parametrize("difference", NO_ALARM.values(), ids=NO_ALARM)
async def test_what_differs_raises_no_flag(store: Store, difference: dict[str, Any]) -> None:
    """On either side of the pair."""
    await first_turn(store, sample(0))

    assert await first_turn(store, sample(1), **difference) == ()
    assert await store.group_flags("default", "g") == ()


@pytest.mark.anyio
@pytest.mark.parametrize("elsewhere", [{"group": "h"}, {"run": "another"}], ids=str)
async def test_other_groups_and_runs_raise_no_flag(store: Store, elsewhere: dict[str, str]) -> None:
    """A rerun is meant to say the same."""
    await first_turn(store, sample(0))

    assert await first_turn(store, sample(1, **elsewhere)) == ()


@pytest.mark.anyio
async def test_a_rollout_that_repeats_itself_raises_no_flag(store: Store) -> None:
    """Only samples are compared."""
    (rollout,) = await store.create_rollouts([sample(0)])

    assert [await turn(store, rollout) for _ in range(2)] == [(), ()]


@pytest.mark.anyio
@pytest.mark.parametrize(("likelihood", "flags"), [(0.02, 0), (0.5, 0), (1.0, 0), (2e-6, 0), (5e-7, 1)])
async def test_what_chance_would_repeat_raises_no_flag(store: Store, likelihood: float, flags: int) -> None:
    """A short "Yes" is no disease; the logprobs tell how likely it was."""
    tokens = replace(make.completion().tokens, logprobs=(math.log(likelihood), 0.0, 0.0))
    reply = make.completion(tokens=tokens)
    await first_turn(store, sample(0), reply)

    assert len(await first_turn(store, sample(1), reply)) == flags


@pytest.mark.anyio
async def test_the_first_choice_stands_for_a_set(store: Store) -> None:
    """Samples that ask for several choices are compared as well."""
    await first_turn(store, sample(0), choices=2)

    assert len(await first_turn(store, sample(1), choices=2)) == 1


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with FakeEngine("vllm") as engine:
        yield engine


@pytest.fixture(scope="module")
def proxy(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    with served(settings_for(tmp_path_factory.mktemp("proxy"), engine.url)) as proxy:
        yield proxy


def collapsed_groups() -> float:
    return REGISTRY.get_sample_value("rollpin_collapsed_groups_total") or 0


def test_a_collapse_is_told_in_log_metric_and_group(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Once for the group, however many samples say the same."""
    before, (first, *others) = collapsed_groups(), [proxy.rollout(group="same", sample=number) for number in range(3)]
    engine.script(SAID, SAID, SAID)
    with capture_logs() as logs:
        for client in (first, *others):
            client.chat()
            client.calls()

    told = [entry for entry in logs if entry["event"].startswith("group collapsed")]
    (flag,) = proxy.control.get(f"/rollouts/{first.rollout_id}").json()["group_flags"]
    assert [(entry["log_level"], entry["group"]) for entry in told] == [("warning", "same")]
    assert collapsed_groups() == before + 1
    assert flag["flag"] == "collapsed"
    assert flag["detail"]["rollouts"] == sorted([first.rollout_id, others[0].rollout_id])


def test_honest_samples_raise_no_alarm(proxy: ServedProxy, engine: FakeEngine) -> None:
    """Eight samples with eight seeds."""
    clients = [proxy.rollout(group="honest", sample=number) for number in range(8)]
    for client in clients:
        client.chat(max_tokens=30)
        client.calls()

    assert proxy.control.get(f"/rollouts/{clients[0].rollout_id}").json()["group_flags"] == []
