"""Each harness through Rollpin: the task is done, and the record of it is whole.

A cell of the table is written down by `see`, which also holds it against what is known of the harness.
"""

from collections.abc import Sequence

import pytest

from proxy.sim.script import Fault, Say
from tests.harnesses.conftest import See
from tests.harnesses.harness import TROUBLES, Harness, Json, Trouble
from tests.harnesses.observe import (
    RULES,
    claims,
    counted_once,
    kinds_of,
    left_out,
    lost,
    of_sub_agent,
    parents,
    prefixes,
    purpose,
    recorded,
    side_branches,
    side_calls,
    signals,
)
from tests.harnesses.script import DELEGATE, GREET, TORSO
from tests.harnesses.stage import HEARTBEAT_S, Stage

PATIENCE_S = 12
"""How long harnesses wait where they can be told: longer than an engine that is well ever takes on a busy machine.

Who leaves just as a reply comes seems to have got it, and asks for another draw.
"""
SILENCE_S = 19.0
"""Outlasts that, and is over in the middle of the second try that any of them makes."""


def fault_for(harness: Harness, trouble: Trouble) -> Fault:
    """What happens to the engine."""
    match trouble:
        case "500" | "529":
            return Fault.status(int(trouble))
        case "cut":
            return Fault.cut(3, Say("Hm.", reasoning="I wonder what the note says. " * 20))
        case "cut in text":
            return Fault.cut(3, torso())
        case "timeout" if harness.time_limit == "silence":
            return Fault.stall(2, SILENCE_S)
        case "timeout":
            return Fault.stall_before_headers(SILENCE_S)


def torso() -> Say:
    """A reply that says so much that it can break off in its text."""
    return Say(f"{TORSO} " * 20, reasoning="")


def test_a_task_is_done_and_recorded(harness: Harness, stage: Stage, see: See) -> None:
    """Commands are run, their output is read, and every call is on record with its parent and its exact prefix."""
    seen = stage.task(harness)
    sides = side_calls(seen)

    assert seen.answered, seen.run
    see(harness, "finished", "yes")
    see(harness, "recorded", recorded(seen))
    see(harness, "parents", parents(seen.calls))
    see(harness, "prefixes", prefixes(seen.calls))
    assert lost(seen.calls) == ({"foreign_history"} if harness.rewrites else set())
    assert [purpose(call) for call in sides] == list(harness.side_calls)
    assert side_branches(seen) == {(RULES[purpose], 0) for purpose in harness.side_calls}
    if not harness.afterwards:
        see(harness, "side calls", listed(sides) or "makes none")
    assert counted_once(seen)


def test_what_a_harness_does_for_itself_is_not_trained_on(housekeeper: Harness, stage: Stage, see: See) -> None:
    """What was said took no tool, and then it goes on by itself, with the conversation in front."""
    seen = stage.perform(housekeeper, GREET)
    sides = side_calls(seen)

    assert seen.run.status == 0, seen.run
    assert kinds_of(seen, [call for call in seen.calls if call not in sides]) == {"main"}
    assert len(seen.calls) == 1 + len(sides)
    assert side_branches(seen) == {(RULES[purpose], 0) for purpose in housekeeper.afterwards}
    see(housekeeper, "side calls", listed(sides))


def listed(calls: Sequence[Json]) -> str:
    """What calls are for, each purpose once."""
    return ", ".join(dict.fromkeys(map(purpose, calls)))


def test_what_a_harness_sends_is_what_its_page_says(harness: Harness, stage: Stage) -> None:
    """The API, streaming, sampling fields, headers that name its session, and hosts that it tries to reach."""
    seen = stage.task(harness)
    hosts = {line.split()[1] for line in seen.run.wanted_outside}

    assert {call["api"] for call in seen.calls} == {harness.api}
    assert {call["stream"] for call in seen.calls if call not in side_calls(seen)} == {harness.streams}
    assert {name for call in seen.calls for name in call["sampling"]["asked"]} == harness.asks
    assert {name for call in seen.calls for name in call["sampling"]["constrained"]} == harness.constrained
    assert signals(seen.calls) - {"user-agent"} == harness.marks
    assert hosts <= harness.wants_outside


def test_it_does_the_same_without_rollpin(harness: Harness, stage: Stage, see: See) -> None:
    """The same answer after as many calls, in which the model heard the same."""
    seen, direct = stage.task(harness), stage.perform_without_rollpin(harness)

    assert direct.answered, direct.run
    assert direct.heard
    assert direct.heard == seen.heard
    asked, usual = direct.engine_requests, seen.engine_requests
    see(harness, "direct", "same" if asked == usual else f"{asked}, not {usual} calls")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_retry_counts_once(harness: Harness, trouble: Trouble, stage: Stage, see: See) -> None:
    """An engine in trouble: the harness asks again and gets the same draw, or gives up as it would without Rollpin."""
    if trouble == "timeout" and harness.time_limit == "none":
        see(harness, trouble, "no such setting")
        return
    fault, timeout_s = fault_for(harness, trouble), PATIENCE_S if trouble == "timeout" else None
    seen = stage.perform(harness, trouble=fault, timeout_s=timeout_s)

    assert counted_once(seen)
    assert seen.answered or seen.run.status, seen.run
    if not seen.answered:
        direct = stage.perform_without_rollpin(harness, trouble=fault, timeout_s=timeout_s)
        see(harness, trouble, "ends when told" if direct.answered else "gives up")
        return
    done = [call for call in seen.calls if call["state"] == "done"]
    halves = {call["call_id"]: call["failure"]["kind"] for call in seen.calls if call not in done}
    assert len(done) == harness.turns + len(harness.side_calls)
    assert bool(claims(seen)) == (not halves)
    assert left_out(seen).items() >= halves.items()
    assert kinds_of(seen, done) == ({"main", "side"} if harness.side_calls else {"main"})
    see(harness, trouble, "once" if claims(seen) else "goes on")


def test_a_held_stream_that_breaks_off_is_asked_for_again(harness: Harness, stage: Stage, see: See) -> None:
    """`hold_streams`: it saw nothing of the reply but signs of life, so there is nothing to keep or to go on from."""
    if not harness.streams:
        see(harness, "cut, held", "not streamed")
        return
    seen = stage.perform(harness, trouble=Fault.cut(3, torso(), seconds=4 * HEARTBEAT_S), held=True)

    assert seen.answered, seen.run
    assert counted_once(seen)
    assert {call["state"] for call in seen.calls} == {"done"}
    see(harness, "cut, held", "once" if claims(seen) == 1 else f"{claims(seen)} claims")


def test_a_sub_agent_has_a_lane_of_its_own(harness: Harness, stage: Stage, see: See) -> None:
    """The one task is handed to another agent of the same harness."""
    if harness.delegate is None:
        see(harness, "sub-agents", "has none")
        return
    seen = stage.perform(harness, DELEGATE)
    sub = of_sub_agent(seen)
    own = [call for call in seen.calls if call not in sub and call not in side_calls(seen)]

    assert seen.answered, seen.run
    assert len(sub) >= 2
    assert parents(sub) == f"{len(sub) - 1} of {len(sub) - 1}"
    assert parents(own) == f"{len(own) - 1} of {len(own) - 1}"
    assert kinds_of(seen, own) == {"main"}
    assert signals(sub) - signals(own) == harness.agent_marks
    assert counted_once(seen)
    see(harness, "sub-agents", "own lane" if kinds_of(seen, sub) == {"subagent"} else "no lane")
