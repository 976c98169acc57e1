"""Retry or deliberate repeat: any order of asking, failing, leaving, delivering and dying, against the rules.

`Rules` is the rules in plain Python, written from their description in docs/records.md and from nothing of the store.
Each step does one thing to both, and what the store then holds must be what the rules say.
"""

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from proxy.errors import TakenOver
from proxy.model import Claimed, JsonObject, Outcome, Reserved
from proxy.record.opening import store_at
from tests import make
from tests.contracts.harness import BROKEN, UNHEARD, Asked, Harness
from tests.postgres import see_off

LAPSED = make.STARTED_AT + 1000
GONE = make.failure("client_gone", partial=make.completion(finish_reason=None))
SIBLING = make.failure("sibling_failed", partial=make.completion(finish_reason=None))
MOST_BREAKS = 2
QUICK = settings(
    max_examples=200,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=2000, stateful_step_count=40, derandomize=False, print_blob=True)

Result = TypeVar("Result")
Kind = tuple[str, str, int]
"""Lane, conversation and number of choices: what makes requests identical."""


# --- the rules --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Reading:
    """One client's reading of a request's reply."""

    asked: Asked
    request: "Request"
    claim: str | None
    outcome: str | None = None


@dataclass(eq=False)
class Request:
    """One request that was drawn, and what became of it."""

    kind: Kind
    occurrence: int
    key: str | None
    state: str = "reserved"
    loss: str | None = None
    """Why the next identical request repeats this one."""
    breaks: int = 0
    is_guess: bool = False
    """Whether it only seems to have failed, since its lease lapsed."""
    failures: list[str] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    tried: list[Asked] = field(default_factory=list)
    """The askings for which an engine was asked, one try each."""
    losses: int = 0
    made_good: int = 0

    @property
    def is_abandoned(self) -> bool:
        return self.state == "failed" and self.breaks >= MOST_BREAKS

    @property
    def first(self) -> Asked:
        """The asking that drew it."""
        return self.readings[0].asked

    def lose(self, reason: str) -> None:
        if self.loss is None:
            self.loss = reason
            self.losses += 1

    def fail(self, kind: str, *, began: bool) -> None:
        self.state, self.breaks = "failed", self.breaks + began
        self.failures.append(kind)
        self.lose("client_gone" if kind == "client_gone" else "failed")

    def may_be_meant(self, key: str | None) -> bool:
        return None in (key, self.key) or self.key == key


class Rules:
    """Everything that was asked in one rollout, and what the next request comes to."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def expect(self, kind: Kind, key: str | None, *, marked: bool) -> tuple[str, Request | None]:
        """By what right the request repeats which one; `new` or `draw_abandoned` where it draws anew."""
        same = [one for one in self.requests if one.kind == kind]
        usable = [one for one in same if not one.is_abandoned]
        for one in usable:
            if key is not None and one.key == key:
                return "idempotency_key", one
        for one in same:
            if one.loss and one.may_be_meant(key):
                return ("draw_abandoned" if one.is_abandoned else one.loss), one
        meant = [one for one in usable if one.may_be_meant(key)]
        return ("retry_count", meant[0]) if marked and len(meant) == 1 else ("new", None)

    def free_occurrence(self, conversation: str) -> int:
        taken = {one.occurrence for one in self.requests if one.kind[1] == conversation}
        return next(number for number in itertools.count() if number not in taken)

    def claim(self, one: Request, key: str | None) -> str:
        """Note that it is repeated; how the store should say that it stands."""
        one.made_good += one.loss is not None
        one.loss, one.key = None, one.key or key
        standing = {"reserved": "running", "done": "recorded", "failed": "again"}[one.state]
        if one.state == "failed":
            one.state, one.is_guess = "reserved", False
        return standing

    def draw(self, kind: Kind, key: str | None, replaced: Request | None) -> Request:
        if replaced is not None:
            replaced.made_good, replaced.loss = replaced.made_good + 1, None
        made = Request(kind, self.free_occurrence(kind[1]), key)
        self.requests.append(made)
        return made

    def end(self, reading: Reading, outcome: str) -> None:
        reading.outcome = outcome
        if outcome in {"client_gone", "lost"} and reading is reading.request.readings[-1]:
            reading.request.lose("client_gone")

    def of(self, *states: str) -> list[Request]:
        return [one for one in self.requests if one.state in states]

    def open_readings(self) -> list[Reading]:
        return [reading for one in self.requests for reading in one.readings if reading.outcome is None]


# --- the store --------------------------------------------------------------------------------------------------


class World:
    """One store for all examples, each of which has a rollout of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._runner = asyncio.Runner()
        self._numbers = itertools.count()
        self.start()

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    def start(self) -> None:
        self.store = store_at(self._url, "wal")
        self.do(self.store.open())

    def restart(self) -> None:
        """As after the death of the process that made all reservations."""
        self.do(self.store.stay_alive(make.OWNER, make.STARTED_AT + make.LEASE_S, make.STARTED_AT))
        self.do(self.store.close())
        see_off(self._url, make.OWNER)
        self.start()

    def harness(self) -> Harness:
        rollout = make.rollout(f"r{next(self._numbers)}")
        self.do(self.store.create_rollouts([rollout]))
        return Harness(self.store, rollout)

    def close(self) -> None:
        self.do(self.store.close())
        self._runner.close()


@pytest.fixture
def world(store_url: str) -> Iterator[World]:
    opened = World(store_url)
    yield opened
    opened.close()


# --- both, side by side -----------------------------------------------------------------------------------------

# Mostly identical requests, so that there is something to tell apart.
KINDS = st.sampled_from([*[("main", "a", 1)] * 6, *[("main", "a", 2)] * 2, ("sub", "a", 1), ("main", "b", 1)])
KEYS = st.sampled_from([None, None, None, "k", "l"])
PICKS = st.integers(0, 7)


class Machine(RuleBasedStateMachine):
    """Steps in any order."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.rules = Rules()

    @initialize()
    def begin(self) -> None:
        self.harness = self.world.harness()

    @rule(kind=KINDS, key=KEYS, marked=st.booleans())
    def ask(self, kind: Kind, key: str | None, *, marked: bool) -> None:
        """A first request, a repeat or a retry: only the rules can tell."""
        reason, meant = self.rules.expect(kind, key, marked=marked)
        lane, conversation, choices = kind
        asked = self.do(self.harness.ask(make.user(conversation), lane=lane, choices=choices, key=key, marked=marked))
        if meant is None or reason == "draw_abandoned":
            request = self.rules.draw(kind, key, meant)
            request.readings.append(Reading(asked, request, None))
            request.tried.append(asked)
            assert asked.answer == Reserved(request.occurrence, seeds_of(request), reason)  # type: ignore[arg-type]
        else:
            standing = self.rules.claim(meant, key)
            first = meant.first.plans
            assert asked.answer == Claimed(
                first[0].request_id,
                tuple(plan.call_id for plan in first),
                meant.occurrence,
                seeds_of(meant),
                standing,  # type: ignore[arg-type]
                reason,  # type: ignore[arg-type]
                len(meant.failures),
            )
            if standing == "again":
                meant.tried.append(asked)
            meant.readings.append(Reading(asked, meant, reason))

    @precondition(lambda self: self.rules.of("reserved"))
    @rule(pick=PICKS, choice=PICKS, began=st.sampled_from([True, True, False]))
    def engine_fails(self, pick: int, choice: int, *, began: bool) -> None:
        """Before or after the first token of one choice; its siblings are cut."""
        request = chosen(self.rules.of("reserved"), pick)
        outcomes: list[Outcome] = [SIBLING] * request.kind[2]
        outcomes[choice % len(outcomes)] = BROKEN if began else UNHEARD
        self.record(request, outcomes)
        request.fail("engine", began=began)

    @precondition(lambda self: self.rules.of("reserved"))
    @rule(pick=PICKS)
    def engine_answers(self, pick: int) -> None:
        request = chosen(self.rules.of("reserved"), pick)
        self.record(request, [make.completion()] * request.kind[2])
        request.state = "done"

    @precondition(lambda self: self.orphans())
    @rule(pick=PICKS)
    def grace_runs_out(self, pick: int) -> None:
        """Nobody waits any more, and the exchange is cut."""
        request = chosen(self.orphans(), pick)
        self.record(request, [GONE] * request.kind[2])
        request.fail("client_gone", began=False)

    @precondition(lambda self: self.rules.open_readings())
    @rule(pick=PICKS)
    def client_leaves(self, pick: int) -> None:
        """Before the end or after it."""
        self.end(chosen(self.rules.open_readings(), pick), "client_gone")

    @precondition(lambda self: self.ended_readings())
    @rule(pick=PICKS)
    def client_reads_to_the_end(self, pick: int) -> None:
        reading = chosen(self.ended_readings(), pick)
        self.end(reading, "delivered" if reading.request.state == "done" else "error_told")

    @precondition(lambda self: self.rules.of("done", "failed"))
    @rule(pick=PICKS)
    def commit_is_repeated(self, pick: int) -> None:
        """Its acknowledgement was lost; whatever it says now, the first one stands."""
        request = chosen([one for one in self.rules.of("done", "failed") if not one.is_guess] or [None], pick)
        if request is not None:
            self.record(request, [make.completion(answer=(9,))] * request.kind[2])

    @rule()
    def process_dies(self) -> None:
        """What ran has failed, and what was being read is lost."""
        self.world.restart()
        self.harness.store = self.world.store
        for request in self.rules.of("reserved"):
            request.fail("proxy_died", began=False)
            request.is_guess = True
        for reading in self.rules.open_readings():
            self.rules.end(reading, "lost")
        assert not [one for one in self.documents() if one["state"] == "reserved"]

    @rule()
    def leases_lapse(self) -> None:
        """The process is only slow, but nobody knows."""
        self.do(self.world.store.sweep(LAPSED))
        for request in self.rules.of("reserved"):
            request.fail("proxy_died", began=False)
            request.is_guess = True

    @precondition(lambda self: self.guesses())
    @rule(pick=PICKS)
    def slow_process_answers_after_all(self, pick: int) -> None:
        """The guess gives way, and what it made a loss is none."""
        request = chosen(self.guesses(), pick)
        self.record(request, [make.completion()] * request.kind[2])
        request.state, request.is_guess = "done", False
        request.failures.pop()
        if request.loss == "failed":
            request.loss, request.losses = None, request.losses - 1

    @precondition(lambda self: self.tried_again())
    @rule(pick=PICKS, answers=st.booleans())
    def an_earlier_try_ends(self, pick: int, *, answers: bool) -> None:
        """It had been given up, and another was made: what it brings is nobody's, and nothing is changed by it."""
        request = chosen(self.tried_again(), pick)
        outcome = make.completion(answer=(9,)) if answers else BROKEN
        with pytest.raises(TakenOver):
            self.do(self.harness.record(request.tried[-2], outcome))

    @invariant()
    def store_holds_what_the_rules_say(self) -> None:
        """Every row, in the order of its reservation; so that a claim has made none, and no set is half of anything."""
        if not hasattr(self, "harness"):
            return
        expected = [row for request in self.rules.requests for row in rows_of(request)]
        assert [row_of(document) for document in self.documents()] == expected

    @invariant()
    def draws_are_apart_and_losses_made_good_once(self) -> None:
        requests = self.rules.requests
        assert len({(one.kind[1], one.occurrence) for one in requests}) == len(requests)
        assert all(one.made_good <= one.losses for one in requests)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.world.do(work)

    def documents(self) -> tuple[JsonObject, ...]:
        return self.do(self.harness.documents())

    def record(self, request: Request, outcomes: list[Outcome]) -> None:
        self.do(self.harness.record(request.tried[-1], *outcomes))

    def end(self, reading: Reading, outcome: Any) -> None:
        self.do(self.harness.end(reading.asked, outcome))
        self.rules.end(reading, outcome)

    def orphans(self) -> list[Request]:
        """Running requests that nobody reads."""
        read = {reading.request for reading in self.rules.open_readings()}
        return [request for request in self.rules.of("reserved") if request not in read]

    def ended_readings(self) -> list[Reading]:
        return [one for one in self.rules.open_readings() if one.request.state != "reserved"]

    def tried_again(self) -> list[Request]:
        return [request for request in self.rules.requests if len(request.tried) > 1]

    def guesses(self) -> list[Request]:
        return [request for request in self.rules.of("failed") if request.is_guess]


def chosen(things: list[Result], pick: int) -> Result:
    return things[pick % len(things)]


def seeds_of(request: Request) -> tuple[int, ...]:
    return tuple(make.seed_of(request.occurrence, choice) for choice in range(request.kind[2]))


def rows_of(request: Request) -> Iterator[JsonObject]:
    """What the store should show of each choice."""
    earlier = len(request.failures) - (request.state == "failed")
    for choice, plan in enumerate(request.first.plans):
        yield {
            "call_id": plan.call_id,
            "request_id": plan.request_id,
            "state": request.state,
            "seed": (make.seed_of(request.occurrence, choice), request.occurrence, choice),
            "failures": earlier,
            "readings": [(reading.claim, reading.outcome) for reading in request.readings],
        }


def row_of(document: JsonObject) -> JsonObject:
    seed = document["seed"]
    return {
        "call_id": document["call_id"],
        "request_id": document["request_id"],
        "state": document["state"],
        "seed": (seed["value"], seed["occurrence"], seed["choice"]),
        "failures": len(document["earlier_failures"]),
        "readings": [(one["claim"], one["outcome"]) for one in document["deliveries"]],
    }


def test_repeats_follow_the_rules(world: World) -> None:
    """Two hundred histories, and fewer where each step takes longer."""
    examples = QUICK.max_examples // (4 if world.store.is_shared else 1)
    run_state_machine_as_test(lambda: Machine(world), settings=settings(QUICK, max_examples=examples))


@pytest.mark.long
def test_repeats_follow_the_rules_for_long(world: World) -> None:
    """Two thousand histories, others each time."""
    examples = LONG.max_examples // (10 if world.store.is_shared else 1)
    run_state_machine_as_test(lambda: Machine(world), settings=settings(LONG, max_examples=examples))
