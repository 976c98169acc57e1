"""The gate in front of an engine: one sampling class at a time, in turns, and nobody starves."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from proxy.engine.gate import Gate, Gates, Passage, SamplingClass, class_of
from proxy.errors import EngineFault
from proxy.model import EngineRef, Profile
from tests import make

WAIT_S = 30.0
PLAIN = Profile("train").pinned()
GREEDY = PLAIN | {"temperature": 0.0}


class Gatekeeping(RuleBasedStateMachine):
    """Any order of arrivals, ends, impatience and hours: the laws hold after each step."""

    outside = Bundle("outside")

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.now, self.turn_began = Gate(WAIT_S), 0.0, 0.0
        self.arrivals: list[Passage] = []
        self.shared: set[Passage] = set()

    @rule(target=outside, kind=st.sampled_from(["plain", "filtered"]))
    def arrive(self, kind: SamplingClass) -> Passage:
        passage = Passage(kind, self.now)
        self.arrivals.append(passage)
        self.gate.ask(passage)
        self.let_in()
        return passage

    @rule(passage=consumes(outside))
    def end(self, passage: Passage) -> None:
        self.gate.end(passage)
        self.let_in()

    @precondition(lambda self: self.gate.waiting)
    @rule(place=st.integers(0, 3))
    def lose_patience(self, place: int) -> None:
        passage = self.gate.waiting[min(place, len(self.gate.waiting) - 1)]
        self.gate.force(passage, self.now)

    @rule(seconds=st.floats(0, 50))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.let_in()

    def let_in(self) -> None:
        """Nobody is let in before a stranger who came earlier and has waited a whole turn, but the oldest of all."""
        was_empty = not self.gate.inside
        self.turn_began = self.now if was_empty else self.turn_began
        oldest = self.gate.waiting[0] if self.gate.waiting else None
        for passage in self.gate.admit(self.now):
            assert not passage.is_disturbed
            assert passage is oldest or not any(self.is_due(other) for other in self.strangers_before(passage))
            assert not was_empty or passage.sampling_class == oldest.sampling_class

    def strangers_before(self, passage: Passage) -> Iterator[Passage]:
        earlier = self.arrivals[: self.arrivals.index(passage)]
        waiting = self.gate.waiting
        return (other for other in earlier if other in waiting and other.sampling_class != passage.sampling_class)

    def is_due(self, passage: Passage) -> bool:
        return self.now - max(passage.asked_at, self.turn_began) >= WAIT_S

    @invariant()
    def whoever_shares_a_batch_with_another_class_is_marked(self) -> None:
        if len({passage.sampling_class for passage in self.gate.inside}) > 1:
            self.shared |= set(self.gate.inside)
        assert all(passage.is_disturbed for passage in self.shared)

    @invariant()
    def a_batch_that_was_mixed_marks_all_until_it_is_empty(self) -> None:
        assert len({passage.is_disturbed for passage in self.gate.inside}) < 2

    @invariant()
    def the_gate_is_never_shut_for_nothing(self) -> None:
        assert self.gate.inside or not self.gate.waiting

    @invariant()
    def nobody_is_lost_or_counted_twice(self) -> None:
        present = self.gate.inside + self.gate.waiting
        assert len(set(present)) == len(present) == self.gate.load


Gatekeeping.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestGatekeeping = Gatekeeping.TestCase


@pytest.mark.parametrize("first", ["plain", "filtered"])
def test_under_steady_load_of_both_classes_nobody_waits_longer_than_a_turn_each_way(first: SamplingClass) -> None:
    """Arrivals every second of both classes, each call runs 8 s: the longest wait is two turns and two drains."""
    gate, running, waits = Gate(WAIT_S), dict[Passage, float](), list[float]()
    second: SamplingClass = "filtered" if first == "plain" else "plain"
    for now in range(1000):
        for passage in [passage for passage, end in running.items() if end <= now]:
            gate.end(passage)
            del running[passage]
        for kind in (first, second):
            gate.ask(Passage(kind, now))
        for passage in gate.admit(now):
            running[passage] = now + 8
            waits.append(now - passage.asked_at)

    assert len(waits) > 1500
    assert max(waits) <= 2 * (WAIT_S + 8)


def test_the_class_inside_lets_its_own_in_until_another_has_waited_a_turn() -> None:
    """Then it drains, and the other class has its turn."""
    gate, order = Gate(WAIT_S), list[tuple[float, Passage]]()

    def at(now: float, *kinds: SamplingClass) -> list[Passage]:
        turns = [Passage(kind, now) for kind in kinds]
        for passage in turns:
            gate.ask(passage)
        order.extend((now, passage) for passage in gate.admit(now))
        return turns

    (training,) = at(0, "plain")
    (greedy,) = at(1, "filtered")
    (own,) = at(29, "plain")
    (late,) = at(40, "plain")
    assert (gate.inside, gate.waiting) == ([training, own], [greedy, late])

    gate.end(training)
    gate.end(own)
    at(50)
    assert (gate.inside, gate.waiting) == ([greedy], [late])
    gate.end(greedy)
    at(51)
    assert gate.inside == [late]
    assert not any(passage.is_disturbed for _, passage in order)


def test_while_classes_are_mixed_nobody_starts_until_the_batch_is_empty() -> None:
    """The engine stays with the filtered path until then, so a newcomer would be touched as well."""
    gate = Gate(WAIT_S)
    plain, greedy, late = Passage("plain", 0), Passage("filtered", 0), Passage("plain", 301)
    gate.ask(plain)
    gate.ask(greedy)
    gate.admit(0)
    gate.force(greedy, 300)
    gate.end(greedy)
    gate.ask(late)
    gate.admit(301)
    assert (gate.inside, gate.waiting) == ([plain], [late])

    gate.end(plain)
    gate.admit(302)
    assert [passage.is_disturbed for passage in (plain, greedy, late)] == [True, True, False]
    assert gate.inside == [late]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "plain"),
        ({"temperature": 0.3}, "plain"),
        ({"presence_penalty": 0.5}, "plain"),
        ({"temperature": 0.0}, "filtered"),
        ({"top_p": 0.99}, "filtered"),
        ({"top_k": 20}, "filtered"),
        ({"min_p": 0.1}, "filtered"),
    ],
)
def test_a_class_is_what_the_sampler_filters(changes: dict[str, float], expected: str) -> None:
    """Greedy is SGLang's top-k of 1; penalties change logits, not the path."""
    assert class_of(PLAIN | changes) == expected
    assert class_of({"input_ids": [1], "sampling_params": PLAIN | changes}) == expected


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p"])
def test_what_a_request_leaves_out_counts_as_filtered(name: str) -> None:
    """The engine fills in the model's own recommendation."""
    assert class_of({key: value for key, value in PLAIN.items() if key != name}) == "filtered"


# --- with a clock -----------------------------------------------------------------------------------------------


def deterministic(kind: Any = "sglang") -> EngineRef:
    return make.engine(kind=kind, deterministic=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def hold(gates: Gates, engine: EngineRef, body: Any, until: asyncio.Event, log: list[str], name: str) -> Passage:
    async with gates.passage(engine, body) as passage:
        log.append(name)
        await until.wait()
    return passage


@pytest.mark.anyio
@pytest.mark.parametrize(("kind", "at_once"), [("sglang", ["plain"]), ("vllm", ["plain", "greedy"])])
async def test_only_a_deterministic_sglang_minds(kind: str, at_once: list[str]) -> None:
    """Elsewhere nobody waits for anybody."""
    gates, ended, log, engine = Gates(), asyncio.Event(), list[str](), deterministic(kind)
    tasks = [
        asyncio.create_task(hold(gates, engine, PLAIN, ended, log, "plain")),
        asyncio.create_task(hold(gates, engine, GREEDY, ended, log, "greedy")),
    ]
    await settle()
    assert log == at_once
    assert gates.load(engine.url) == 2

    ended.set()
    turns = await asyncio.gather(*tasks)
    assert log == ["plain", "greedy"]
    assert not any(passage.is_disturbed for passage in turns)
    assert gates.load(engine.url) == 0


@pytest.mark.anyio
async def test_whose_patience_is_over_runs_and_both_are_marked() -> None:
    """Better a call that is known to be unproven than one that never comes."""
    gates, ended, log, engine = Gates(class_patience_s=0.02), asyncio.Event(), list[str](), deterministic()
    plain = asyncio.create_task(hold(gates, engine, PLAIN, ended, log, "plain"))
    await settle()
    async with gates.passage(engine, GREEDY) as greedy:
        assert not plain.done()
    ended.set()

    assert log == ["plain"]
    assert (await plain).is_disturbed
    assert greedy.is_disturbed


@pytest.mark.anyio
async def test_whoever_leaves_the_queue_holds_nobody_up() -> None:
    """A cancelled waiter is gone at once."""
    gates, ended, log, engine = Gates(class_wait_s=0), asyncio.Event(), list[str](), deterministic()
    running = asyncio.create_task(hold(gates, engine, PLAIN, ended, log, "plain"))
    waiting = asyncio.create_task(hold(gates, engine, GREEDY, ended, log, "greedy"))
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    another = asyncio.create_task(hold(gates, engine, PLAIN, ended, log, "another"))
    await settle()
    assert log == ["plain", "another"]

    ended.set()
    await asyncio.gather(running, another)


CUTS: dict[str, tuple[BaseException, bool]] = {
    "cut": (EngineFault("engine_cut", 502, ""), True),
    "stalled": (EngineFault("engine_stalled", 504, ""), True),
    "cancelled": (asyncio.CancelledError(), True),
    "refused": (EngineFault("engine_refused", 400, "", engine_status=400), False),
    "never reached": (EngineFault("engine_unreachable", 502, ""), False),
}


@pytest.mark.anyio
@pytest.mark.parametrize(("error", "lingers"), CUTS.values(), ids=CUTS)
async def test_a_call_that_was_cut_still_counts_for_a_moment(
    error: BaseException, lingers: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine notices late that nobody reads any more; a refused call never ran."""
    monkeypatch.setattr("proxy.engine.gate.LINGER_S", 0.02)
    gates, engine = Gates(), deterministic()
    with pytest.raises(type(error)):
        async with gates.passage(engine, PLAIN):
            raise error

    assert gates.is_open(engine.url, "filtered") is not lingers
    async with gates.passage(engine, GREEDY) as passage:
        assert not passage.is_disturbed
    assert gates.load(engine.url) == 0
