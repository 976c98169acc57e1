"""What happens to the calls of one rollout, in a word each: asked, answered, failed, read, left."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy import clock
from proxy.model import (
    Call,
    Claimed,
    Completion,
    DeliveryOutcome,
    Failure,
    GroupFlag,
    JsonObject,
    Outcome,
    Plan,
    Reserved,
    Rollout,
)
from proxy.record.store import Store
from tests import make

BROKEN = make.failure("engine_cut", partial=make.completion(finish_reason=None))
"""A failure after the first token."""
UNHEARD = make.failure("engine_unreachable")
"""A failure before the first token."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that the store has answered for."""

    plans: tuple[Plan, ...]
    answer: Reserved | Claimed
    delivery_id: str

    @property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(plan.call_id for plan in self.plans)

    @property
    def claim(self) -> Claimed:
        """The claim that it came to."""
        assert isinstance(self.answer, Claimed), self.answer
        return self.answer

    @property
    def draw(self) -> Reserved:
        """The new draw that it came to."""
        assert isinstance(self.answer, Reserved), self.answer
        return self.answer


class Harness:
    """Asks in one rollout, and lets the engine and the clients do what the test says."""

    def __init__(self, store: Store, rollout: Rollout) -> None:
        self.store = store
        self.rollout = rollout

    async def ask(
        self,
        *messages: JsonObject,
        choices: int = 1,
        lane: str = "",
        key: str | None = None,
        marked: bool = False,
        **changes: Any,
    ) -> Asked:
        """One request; identical to others of the same messages, choices and lane."""
        plans = make.plans(choices, make.ask(*messages, of=self.rollout), **changes)
        ask_hash = f"{lane} {choices} {plans[0].ask.conversation.context}"
        delivery_id = clock.new_id("delivery")
        repeat = make.repeat(ask_hash, key=key, marked=marked)
        asking = make.reservation(*plans, repeat=repeat, delivery_id=delivery_id)
        answer = await self.store.reserve(asking)
        if isinstance(answer, Claimed):
            return Asked(make.claimed(plans, answer), answer, delivery_id)
        return Asked(tuple(make.reserved(plan, answer) for plan in plans), answer, delivery_id)

    async def record(self, asked: Asked, *outcomes: Outcome) -> tuple[GroupFlag, ...]:
        """The outcomes, one for each choice or one for all."""
        each = outcomes if len(outcomes) == len(asked.plans) else outcomes * len(asked.plans)
        return await self.store.record(calls_of(asked.plans, each))

    async def reply(self, asked: Asked, completion: Completion | None = None) -> tuple[GroupFlag, ...]:
        """The engine's answer, recorded."""
        return await self.record(asked, completion or make.completion())

    async def fail(self, asked: Asked, failure: Failure = UNHEARD) -> None:
        """The engine's failure, recorded, and told to the client."""
        await self.record(asked, failure)
        await self.end(asked, "error_told")

    async def end(self, asked: Asked, outcome: DeliveryOutcome = "delivered") -> None:
        """The end of this client's reading."""
        await self.store.deliver(make.delivery(asked.delivery_id, outcome))

    async def leave(self, asked: Asked) -> None:
        """The client goes away."""
        await self.end(asked, "client_gone")

    async def documents(self) -> tuple[JsonObject, ...]:
        """All calls of the rollout."""
        return (await self.store.calls(self.rollout.rollout_id, None, 1000)).items

    async def document(self) -> JsonObject:
        """The only call of the rollout."""
        (document,) = await self.documents()
        return document


def calls_of(plans: Sequence[Plan], outcomes: Sequence[Outcome]) -> list[Call]:
    return [make.call(plan, outcome) for plan, outcome in zip(plans, outcomes, strict=True)]
