"""Builders of the data that flows, with defaults: a test names only what it is about."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy import clock
from proxy.model import (
    Ask,
    Call,
    CallId,
    Claimed,
    Completion,
    Delivery,
    DeliveryOutcome,
    Draw,
    EngineFacts,
    EngineRef,
    Failure,
    Identity,
    JsonObject,
    Outcome,
    Parent,
    Plan,
    Prefix,
    Profile,
    RepeatMark,
    Replayable,
    Reservation,
    Reserved,
    Rollout,
    RolloutId,
    Sampling,
    Seed,
    Segment,
    Timing,
    Tokens,
)
from proxy.request.conversation import read_conversation

STARTED_AT = 1_700_000_000.0
LEASE_S = 30
OWNER = "proxy-1"
SEED = 1234
PROMPT = (101, 102, 103)
ANSWER = (201, 202)
END = 2


def rollout(rollout_id: str = "r1", **changes: Any) -> Rollout:
    """An open rollout, alone in its group."""
    made = Rollout(
        rollout_id=RolloutId(rollout_id),
        run="default",
        group=rollout_id,
        sample=0,
        attempt=0,
        profile="train",
        sampling={},
        state="open",
        created_at=STARTED_AT,
        expires_at=None,
    )
    return replace(made, **changes)


def user(text: str = "What is 2+2?") -> JsonObject:
    return {"role": "user", "content": text}


def assistant(text: str = "4") -> JsonObject:
    return {"role": "assistant", "content": text}


def ask(*messages: JsonObject, of: Rollout | None = None, body: JsonObject | None = None, **changes: Any) -> Ask:
    """A chat request of the given messages; other fields of the client's body in `body`."""
    settled = messages or (user(),)
    whole = {"model": "policy", "messages": list(settled), **(body or {})}
    made = Ask(
        identity=Identity(of or rollout(), lane_signals={}, idempotency_key=None, retry_count=0),
        api="chat",
        body=whole,
        chat=whole,
        messages=tuple(settled),
        volatile=(),
        conversation=read_conversation(settled, whole),
        stream=False,
        choices=1,
        include_usage=False,
        wants_logprobs=False,
        top_logprobs=0,
        requested_model="policy",
        has_tools="tools" in whole,
    )
    return replace(made, **changes)


def sampling(**changes: Any) -> Sampling:
    made = Sampling(
        effective=Profile("train").pinned(),
        asked={},
        overridden=(),
        length={},
        shaping={},
        constrained=(),
        ignored=(),
    )
    return replace(made, **changes)


def engine(name: str = "e1", **facts: Any) -> EngineRef:
    """A vLLM engine; facts may be changed by name."""
    made = EngineFacts(
        kind="vllm", version="0.32", model="policy", context_length=4096, vocabulary=1000, deterministic=False
    )
    return EngineRef(name, "http://127.0.0.1:1", replace(made, **facts))


def plan(asked: Ask | None = None, **changes: Any) -> Plan:
    """Everything decided about a root call."""
    made = Plan(
        call_id=CallId(clock.new_id("call")),
        request_id=clock.new_id("req"),
        ask=asked or ask(),
        profile=Profile("train"),
        parent=Parent("root", "first_call"),
        sampling=sampling(),
        seed=Seed(SEED, "minted", occurrence=0, choice=0),
        prefix=Prefix(eligible=False, requested=False, supplied=False, length=0, reason="root"),
        engine=engine(),
        started_at=STARTED_AT,
    )
    return replace(made, **changes)


def completion(prompt: Sequence[int] = PROMPT, answer: Sequence[int] = (*ANSWER, END), **changes: Any) -> Completion:
    """A whole reply with tokens, each of logprob -0.5."""
    made = Completion(
        tokens=Tokens(tuple(prompt), tuple(answer), (-0.5,) * len(answer)),
        finish_reason="stop",
        message=assistant(),
        engine_message=assistant(),
        usage={"prompt_tokens": len(prompt), "completion_tokens": len(answer)},
    )
    return replace(made, **changes)


def failure(kind: str = "engine_cut", **changes: Any) -> Failure:
    return replace(Failure(kind, 502, "the engine closed the connection"), **changes)


def call(planned: Plan | None = None, outcome: Outcome | None = None, **changes: Any) -> Call:
    """A plan with its outcome, by default a whole reply."""
    decided = planned or plan()
    answered = outcome or completion()
    reply = answered.partial if isinstance(answered, Failure) else answered
    length = len(reply.tokens.completion_ids) if reply else 0
    made = Call(
        plan=decided,
        outcome=answered,
        segments=(Segment(0, length, decided.seed.value, None, decided.engine.name),) if length else (),
        timing=Timing(decided.started_at, first_event_s=0.1, ended_s=0.2),
        replayable=Replayable("no", ("engine_not_deterministic",)),
    )
    return replace(made, **changes)


def plans(choices: int, asked: Ask | None = None, **changes: Any) -> tuple[Plan, ...]:
    """Everything decided about a request of n choices."""
    first = plan(replace(asked or ask(), choices=choices), **changes)
    return tuple(
        replace(first, call_id=CallId(clock.new_id("call")), seed=replace(first.seed, choice=choice))
        for choice in range(choices)
    )


def repeat(ask_hash: str, *, key: str | None = None, marked: bool = False) -> RepeatMark:
    """What tells a retry from a deliberate repeat; equal hashes stand for identical requests."""
    return RepeatMark(ask_hash, key, marked)


def reservation(*planned: Plan, **changes: Any) -> Reservation:
    """The rows that come before the calls of one request, identical to no other; seeds as `seed_of` gives them."""
    decided = planned or (plan(),)
    first = decided[0]
    made = Reservation(
        request_id=first.request_id,
        rollout_id=first.ask.identity.rollout_id,
        context=first.ask.conversation.context,
        history=first.ask.conversation.history[-1],
        draws=tuple(draw(one) for one in decided),
        repeat=repeat(first.request_id),
        delivery_id=clock.new_id("delivery"),
        api=first.ask.api,
        stream=first.ask.stream,
        asked_at=first.started_at,
        lease_until=first.started_at + LEASE_S,
        owner=OWNER,
    )
    return replace(made, **changes)


def draw(planned: Plan) -> Draw:
    choice = planned.seed.choice
    return Draw(planned.call_id, choice, lambda occurrence: seed_of(occurrence, choice))


def seed_of(occurrence: int, choice: int = 0) -> int:
    """The seed that reservations made here mint."""
    return 1000 * (choice + 1) + occurrence


def reserved(planned: Plan, given: Reserved | Claimed) -> Plan:
    """The plan with the occurrence and the seed that the store gave."""
    value, tries = given.seeds[planned.seed.choice], given.tries if isinstance(given, Claimed) else 0
    return replace(planned, seed=replace(planned.seed, value=value, occurrence=given.occurrence), tries=tries)


def claimed(planned: Sequence[Plan], given: Claimed) -> tuple[Plan, ...]:
    """The plans of a request that tries an earlier one again: its calls, its seeds."""
    return tuple(
        reserved(replace(one, request_id=given.request_id, call_id=call_id), given)
        for one, call_id in zip(planned, given.call_ids, strict=True)
    )


def delivery(delivery_id: str, outcome: DeliveryOutcome = "delivered", **changes: Any) -> Delivery:
    """The end of one client's reading."""
    return replace(Delivery(delivery_id, STARTED_AT + 1, outcome, events=3), **changes)
