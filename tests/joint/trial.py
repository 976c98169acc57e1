"""A case put before the joint and before the oracle, and what comes of it."""

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

from proxy.model import SampledTurn
from proxy.request import joint
from proxy.request.joint_turn import Decode, Habits, Refused, Render, Tail, Turn, Unrendered
from proxy.supply import turn_in
from tests.joint.case import Case
from tests.joint.conversations import make_case
from tests.joint.engine import UnrenderableError
from tests.joint.oracle import MustRefuse, right_tail

# How often a template may have no words for a conversation before we say that it has words for none.
TRIES = 60

Outcome: TypeAlias = Tail | Refused
Steps: TypeAlias = Generator[tuple[Render | Decode, ...], tuple[Any, ...], Outcome]
Finder: TypeAlias = Callable[[Turn, Habits], Steps]
Verdict = Literal["right", "refused", "wrong"]


@dataclass(frozen=True, slots=True)
class Trial:
    """What the joint said of a case, beside what is right."""

    case: Case
    outcome: Outcome
    expected: str | MustRefuse

    @property
    def verdict(self) -> Verdict:
        if isinstance(self.outcome, Refused):
            return "refused"
        if isinstance(self.expected, MustRefuse):
            return "wrong"
        # Ids, not only text: a tail begins behind a control token, so there is one split of it.
        return "right" if self.outcome.ids == self.case.vocabulary.encode(self.expected) else "wrong"

    @property
    def is_needless(self) -> bool:
        """Refused, though there is a right tail."""
        return self.verdict == "refused" and isinstance(self.expected, str)

    def __str__(self) -> str:
        case, outcome = self.case, self.outcome
        said = outcome if isinstance(outcome, Refused) else f"{outcome.end} {case.vocabulary.decode(outcome.ids)!r}"
        told = "\n".join(f"    {'>' if case.start <= n < case.stop else ' '} {m}" for n, m in enumerate(case.real))
        return (
            f"{self.verdict}: {case.template}, seed {case.seed!r}, {case.finish}, like {case.engine.kind}\n{told}\n"
            f"  sampled  {case.vocabulary.decode(case.sampled)!r}\n"
            f"  expected {self.expected!r}\n  joint    {said}"
        )


def try_case(case: Case, finder: Finder = joint.find_tail, habits: Habits | None = None) -> Trial:
    """Both answers to one case."""
    habits = habits or Habits()
    steps = finder(turn_of(case, habits), habits)
    return Trial(case, _driven(steps, case), right_tail(case))


def turn_of(case: Case, habits: Habits) -> Turn:
    """The case as the proxy knows it, from what the engine reported."""
    if case.knows_ends:
        ends = {case.family.text_end, *case.family.call_ends, *case.family.strays}
        habits.ends |= {case.vocabulary.controls[end] for end in ends}
    reported = SampledTurn(
        prompt_ids=(),
        completion_ids=case.sampled,
        finish_reason=case.finish_reason,
        matched_stop=case.matched_stop,
        stops=case.stops,
        has_stop_ids=case.has_stop_ids,
        reasoning=case.reasoning,
        engine_kind=case.engine.kind,
        fingerprint=None,
    )
    key = "reasoning" if case.engine.kind == "vllm" else "reasoning_content"
    return turn_in(case.real, case.start, case.stop, reported, key, habits)


def _driven(steps: Steps, case: Case) -> Outcome:
    try:
        questions = next(steps)
        while True:
            questions = steps.send(tuple(answer_to(question, case) for question in questions))
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


def answer_to(question: Render | Decode, case: Case) -> tuple[int, ...] | str | Unrendered:
    if isinstance(question, Decode):
        return case.vocabulary.decode(question.ids)
    try:
        text = case.engine.text(question.messages, generation_prompt=question.generation_prompt)
    except UnrenderableError as error:
        return Unrendered(str(error))
    return case.vocabulary.encode(text)


def battery(template: str, size: int) -> Iterator[Case]:
    """The first `size` cases of a template, the same ones every time."""
    for number in range(size):
        for attempt in range(TRIES):
            seed = f"{template}/{number}/{attempt}"
            if case := make_case(template, seed, random.Random(seed)):
                yield case
                break
        else:
            raise AssertionError(f"{template} rendered none of {TRIES} conversations")


@cache
def trials(template: str, size: int) -> tuple[Trial, ...]:
    """A battery, tried."""
    return tuple(try_case(case) for case in battery(template, size))
