"""`rollpin replay` and `rollpin rescore`: what a person reads of them, and what a script does."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.commands.conftest import Run
from tests.fakes import FakeEngine, Fault, Say
from tests.served import ADMIN, READER, ServedProxy, served, settings_for


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine("sglang") as running:
        yield running


@pytest.fixture
def proxy(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    with served(settings_for(tmp_path_factory.mktemp("proxy"), engine.url)) as running:
        yield running


def where(proxy: ServedProxy, token: str = ADMIN) -> tuple[str, ...]:
    return "--url", proxy.url, "--token", token


def played(proxy: ServedProxy, group: str, samples: int = 2) -> list[dict[str, Any]]:
    """A group whose every sample asked once; its calls."""
    clients = [proxy.rollout(group=group, sample=sample) for sample in range(samples)]
    for client in clients:
        client.chat("hello", max_tokens=12)
    return [call for client in clients for call in client.calls()]


def test_a_group_that_draws_the_same_is_told_in_two_lines(proxy: ServedProxy, run: Run) -> None:
    """With status 0."""
    played(proxy, "task")
    done = run("replay", "--group", "task", *where(proxy))

    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "2 calls: 2 same",
        "2 of 2 drawn again are the same (100.0%); logprobs differ by at most 0.0e+00",
    ]


def test_what_differs_and_what_was_not_tried_are_told_and_end_with_status_1(
    proxy: ServedProxy, engine: FakeEngine, run: Run
) -> None:
    """Both tokens with their logprobs; reasons with their counts; nothing wider than the terminal."""
    engine.script(Say("scripted"), Fault.status(500))
    calls = played(proxy, "task", 3)
    done = run("replay", "--group", "task", *where(proxy))

    assert done.status == 1
    assert done.out.splitlines()[0] == "3 calls: 1 same, 1 diverged, 1 not replayable"
    assert f"{calls[0]['call_id']}  diverged" in done.out
    assert "on record" in done.out
    assert ["engine_error", "1"] in [line.split() for line in done.out.splitlines()]
    assert done.out.endswith("what each reason means: docs/replay.md, docs/records.md\n")
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_a_call_that_no_engine_can_draw_is_told_with_what_to_do(
    proxy: ServedProxy, engine: FakeEngine, run: Run
) -> None:
    """A reason in one word helps a script, not a person."""
    played(proxy, "task")
    proxy.control.delete("/engines/engine-0")
    done = run("replay", "--group", "task", *where(proxy))

    assert done.status == 1
    assert ["no_engine_like_it", "2"] in [line.split() for line in done.out.splitlines()]
    assert "no_engine_like_it: serve the kind, version, model and mode" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_lines_of_json_hold_every_verdict_and_one_summary(proxy: ServedProxy, run: Run) -> None:
    """Over all rollouts that were named."""
    calls = played(proxy, "task")
    names = [call["rollout_id"] for call in calls]
    done = run("replay", *names, "--json", *where(proxy))
    *verdicts, last = [json.loads(line) for line in done.out.splitlines()]

    assert [line["verdict"]["call_id"] for line in verdicts] == [call["call_id"] for call in calls]
    assert (last["summary"]["calls"], last["summary"]["same"]) == (2, 2)


def test_one_call_can_be_named(proxy: ServedProxy, run: Run) -> None:
    """Together with its rollout."""
    call = played(proxy, "task")[1]
    done = run("replay", call["rollout_id"], "--call", call["call_id"], *where(proxy))

    assert (done.status, done.out.splitlines()[0]) == (0, "1 call: 1 same")


def test_nothing_drawn_again_is_no_success(proxy: ServedProxy, engine: FakeEngine, run: Run) -> None:
    """A gate that lets an empty run pass would prove nothing."""
    engine.script(Fault.status(500))
    played(proxy, "task", 1)
    done = run("replay", "--group", "task", *where(proxy))

    assert done.status == 1
    assert "no call was drawn again" in done.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name rollouts, or give --group or --run"),
        (("r1", "--group", "g"), "rollouts are named"),
        (("r1", "r2", "--call", "ca_1"), "--call: name the one rollout"),
        (("r1",), "no rollout has the id 'r1'"),
    ],
)
def test_what_cannot_be_asked_is_one_line(proxy: ServedProxy, run: Run, arguments: tuple[str, ...], told: str) -> None:
    """Before any engine is asked."""
    done = run("replay", *arguments, *where(proxy))

    assert done.status != 0
    assert told in done.err
    assert len(done.err.splitlines()) == 1


def test_the_read_token_is_not_enough(proxy: ServedProxy, run: Run) -> None:
    """A replay costs engine time."""
    played(proxy, "task")
    done = run("replay", "--group", "task", *where(proxy, READER))

    assert done.status == 1
    assert "admin token" in done.err


def test_a_rescore_tells_the_drift_over_all_calls(proxy: ServedProxy, run: Run) -> None:
    """None, under the same weights."""
    calls = played(proxy, "task")
    done = run("rescore", "--group", "task", *where(proxy))
    tokens = sum(len(call["completion_token_ids"]) for call in calls)

    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "2 calls: 2 rescored",
        f"{tokens} tokens, logprobs of now less the recorded ones:",
        "  mean +0.00e+00, absolute 0.00e+00",
        "  largest 0.00e+00, estimated KL 0.00e+00 (k3)",
    ]


def test_a_rescore_gives_proximal_logprobs_as_json(proxy: ServedProxy, run: Run) -> None:
    """One for each recorded token."""
    call = played(proxy, "task", 1)[0]
    done = run("rescore", call["rollout_id"], "--json", "--logprobs", *where(proxy))
    told = [json.loads(line) for line in done.out.splitlines()]

    assert [line["rescore"]["logprobs"] for line in told if "rescore" in line] == [call["logprobs"]]


def test_a_rescore_that_nothing_came_of_ends_with_status_1(proxy: ServedProxy, engine: FakeEngine, run: Run) -> None:
    """As where every call had failed."""
    engine.script(Fault.status(500))
    played(proxy, "task", 1)
    done = run("rescore", "--group", "task", *where(proxy))

    assert (done.status, done.out.splitlines()) == (1, ["1 call: 1 not rescorable", "nothing to compare"])
