"""A reply while it grows: readers come and go, the end waits, and time runs out where nobody waits."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from proxy.errors import Busy, EngineFault
from proxy.model import RolloutId
from proxy.running import Head, Running, Turns
from tests import make

pytestmark = pytest.mark.anyio

ONE = RolloutId("r1")
OTHER = RolloutId("r2")
DONE = (make.completion(),)


def running(request_id: str = "rq_1", *, call_s: float = 60, orphan_grace_s: float = 60) -> Running:
    head = Head(request_id, (make.plan().call_id,), make.STARTED_AT, "policy")
    return Running(head, call_s=call_s, orphan_grace_s=orphan_grace_s)


async def all_of(reply: Running) -> list[Any]:
    """The events of a reply, read to its end."""
    told: list[Any] = []
    while events := await reply.read_on(len(told), None):
        told.extend(event.event["n"] for event in events)
    return told


async def limited(reply: Running, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
    """Whether the work was cut by the reply's time limit."""
    async with reply.time_limit():
        await work()
    return reply.is_out_of_time


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_late_reader_gets_everything_from_the_first_event_on() -> None:
    """That is what lets a retry join."""
    reply = running()
    reply.publish(0, {"n": 1})
    early = asyncio.ensure_future(all_of(reply))
    await asyncio.sleep(0)
    reply.publish(0, {"n": 2})
    reply.end(DONE)

    assert [await early, await all_of(reply)] == [[1, 2], [1, 2]]


async def test_held_events_come_with_the_end_and_never_before() -> None:
    """Nobody learns of an end that is not on record."""
    reply = running()
    reply.publish(0, {"n": 1})
    reply.hold(0, {"n": 2})

    assert [event.event for event in await reply.read_on(0, None) or ()] == [{"n": 1}]
    assert await reply.read_on(1, 0.01) is None
    reply.end(DONE)
    assert await all_of(reply) == [1, 2]
    assert await reply.ending() == DONE


async def test_held_events_are_lost_with_a_failure() -> None:
    """The finish reason of a reply that failed to commit is never shown."""
    reply = running()
    reply.hold(0, {"n": 1})
    reply.fail(EngineFault("engine_cut", 502, "gone"))

    assert await all_of(reply) == []


async def test_patience_tells_silence_from_the_end() -> None:
    """None is silence, empty is the end."""
    reply = running()

    assert await reply.read_on(0, 0.01) is None
    assert not await reply.settled_within(0.01)
    reply.end(DONE)
    assert await reply.read_on(0, 0.01) == ()
    assert await reply.settled_within(0.01)


async def test_a_reply_is_cut_at_its_time() -> None:
    """`call_s` bounds it, whoever waits."""
    reply = running(call_s=0.02)

    assert await limited(reply, forever)
    assert not reply.is_abandoned


async def test_a_reply_that_ends_in_time_is_not_cut() -> None:
    """The ordinary case."""
    assert not await limited(running(call_s=60), lambda: asyncio.sleep(0))


async def test_when_the_last_reader_leaves_the_grace_begins() -> None:
    """Not when the first does."""
    reply = running(orphan_grace_s=0.02)

    async def read_and_leave() -> None:
        with reply.reader():
            with reply.reader():
                await asyncio.sleep(0)
            assert not reply.is_abandoned
            await asyncio.sleep(0.05)
        await forever()

    assert await limited(reply, read_and_leave)
    assert reply.is_abandoned


async def test_a_reader_who_comes_within_the_grace_saves_the_reply() -> None:
    """A retry joins the running reply."""
    reply = running(orphan_grace_s=0.03)

    async def leave_and_come_back() -> None:
        with reply.reader():
            pass
        assert reply.is_abandoned
        with reply.reader():
            await asyncio.sleep(0.06)

    assert not await limited(reply, leave_and_come_back)


async def test_a_stopped_reply_is_cut_at_once() -> None:
    """Also before its exchange began, and whoever comes to read."""
    reply = running()
    reply.stop()
    with reply.reader():
        assert await limited(reply, forever)
    assert reply.is_stopped


async def test_room_is_limited_in_all_and_per_rollout() -> None:
    """429 says which limit it was."""
    turns = Turns(at_once=3, at_once_per_rollout=2)
    with turns.admission(ONE), turns.admission(ONE):
        with pytest.raises(Busy, match="of one rollout"), turns.admission(ONE):
            pass
        with turns.admission(OTHER), pytest.raises(Busy, match="in this proxy"), turns.admission(RolloutId("r3")):
            pass


async def test_room_comes_back_when_the_block_fails() -> None:
    """A call that may not happen takes none."""
    turns = Turns(at_once=1, at_once_per_rollout=1)
    for _ in range(3):
        with pytest.raises(ValueError), turns.admission(ONE):
            raise ValueError


async def test_room_comes_back_when_the_turn_ends() -> None:
    """Not when its client's request does."""
    turns, gate = Turns(at_once=1, at_once_per_rollout=1), asyncio.Event()
    reply = running()
    with turns.admission(ONE) as admission:
        turns.start(reply, _until(gate), admission)
    with pytest.raises(Busy), turns.admission(ONE):
        pass

    assert turns.call_ids() == reply.head.call_ids
    gate.set()
    await turns.drain(60, 60)
    assert turns.call_ids() == ()
    with turns.admission(ONE):
        pass


async def test_draining_lets_turns_end() -> None:
    """All of them, by themselves."""
    turns, replies = Turns(at_once=9, at_once_per_rollout=9), (running("rq_1"), running("rq_2"))
    for turns_left, reply in enumerate(replies, 1):
        with turns.admission(ONE) as admission:
            turns.start(reply, _after(turns_left), admission)
    await turns.drain(60, 60)

    assert not any(reply.is_stopped for reply in replies)
    assert turns.call_ids() == ()


async def test_draining_stops_what_does_not_end() -> None:
    """It is cut, and waited for until it is on record."""
    turns, slow = Turns(at_once=9, at_once_per_rollout=9), running()
    with turns.admission(ONE) as admission:
        turns.start(slow, limited(slow, forever), admission)  # type: ignore[arg-type]
    await turns.drain(0.01, 60)

    assert (slow.is_stopped, slow.is_out_of_time) == (True, True)
    assert turns.call_ids() == ()


async def _after(turns_of_the_loop: int) -> None:
    for _ in range(turns_of_the_loop):
        await asyncio.sleep(0)


async def _until(gate: asyncio.Event) -> None:
    await gate.wait()
