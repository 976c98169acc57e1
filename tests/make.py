"""Builders of the data that flows, with defaults: a test names only what it is about."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy import clock
from proxy.model import (
    Ask,
    Call,
    CallId,
    Completion,
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
        messages=tuple(settled),
        volatile=(),
        conversation=read_conversation(settled, whole),
        stream=False,
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


def reservation(planned: Plan | None = None, **changes: Any) -> Reservation:
    """The row that comes before a plan's call; the seed is 1000 and the occurrence."""
    decided = planned or plan()
    made = Reservation(
        call_id=decided.call_id,
        request_id=decided.request_id,
        rollout_id=decided.ask.identity.rollout_id,
        context=decided.ask.conversation.context,
        choice=decided.seed.choice,
        history=decided.ask.conversation.history[-1],
        api=decided.ask.api,
        stream=decided.ask.stream,
        asked_at=decided.started_at,
        lease_until=decided.started_at + 30,
        owner="proxy-1",
        mint=lambda occurrence: 1000 + occurrence,
    )
    return replace(made, **changes)


def reserved(planned: Plan, given: Reserved) -> Plan:
    """The plan with the occurrence and the seed that the store gave."""
    return replace(planned, seed=replace(planned.seed, value=given.seed, occurrence=given.occurrence))
