"""From decisions to plans: what is reserved, and whether a request draws anew or repeats an earlier one."""

from dataclasses import dataclass, replace

from proxy import clock
from proxy.canonical import digest
from proxy.model import (
    Ask,
    CallId,
    Claimed,
    Draw,
    EngineRef,
    Parent,
    Plan,
    Prefix,
    Profile,
    RepeatMark,
    Reservation,
    Reserved,
    Sampling,
    Seed,
)
from proxy.request.parent import told_apart
from proxy.request.sampling import asked_max_tokens
from proxy.request.seed import SeedRule, read_client_seed
from proxy.wiring import Wiring

ASK_MARK = "rollpin-ask-3"
# Names a client, not a lane: programs change it between versions, and a retry keeps it.
NO_LANE_SIGNAL = "user-agent"


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything about a request that was decided before its draw."""

    ask: Ask
    profile: Profile
    engine: EngineRef
    sampling: Sampling
    parent: Parent
    prefix: Prefix
    audit_top: int = 0
    """Candidates of each draw to keep for the seed audit."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a reservation came to: plans to carry out, or a claim on a reply that is there or on its way."""

    delivery_id: str
    answer: Reserved | Claimed
    plans: tuple[Plan, ...] = ()


async def draw(decision: Decision, wiring: Wiring) -> Drawn:
    """Write the rows that account for the request whatever happens, and with them settle its seeds."""
    rules = seed_rules(decision, wiring)
    asked = reservation(decision, rules, wiring)
    answer = await wiring.store.reserve(asked)
    if isinstance(answer, Claimed) and answer.standing != "again":
        return Drawn(asked.delivery_id, answer)
    request_id = answer.request_id if isinstance(answer, Claimed) else asked.request_id
    call_ids = answer.call_ids if isinstance(answer, Claimed) else tuple(draw.call_id for draw in asked.draws)
    tries = answer.tries if isinstance(answer, Claimed) else 0
    plans = tuple(
        replace(make_plan(decision, request_id, call_id, rule.seed(value, answer.occurrence), asked), tries=tries)
        for call_id, value, rule in zip(call_ids, answer.seeds, rules, strict=True)
    )
    return Drawn(asked.delivery_id, answer, plans)


def seed_rules(decision: Decision, wiring: Wiring) -> tuple[SeedRule, ...]:
    """How the seed of each choice follows from the occurrence."""
    ask, client_seed = decision.ask, read_client_seed(decision.ask.chat.get("seed"))
    mode, run_seed, context = wiring.settings.client_seed, wiring.run_seed, ask.conversation.context
    return tuple(SeedRule(mode, run_seed, ask.identity, context, choice, client_seed) for choice in range(ask.choices))


def reservation(decision: Decision, rules: tuple[SeedRule, ...], wiring: Wiring) -> Reservation:
    """What the store is asked to write."""
    ask, now = decision.ask, clock.now()
    return Reservation(
        request_id=clock.new_id("rq"),
        rollout_id=ask.identity.rollout_id,
        context=ask.conversation.context,
        history=ask.conversation.history[-1],
        draws=tuple(Draw(CallId(clock.new_id("ca")), choice, rule.mint) for choice, rule in enumerate(rules)),
        repeat=repeat_mark(decision, rules[0], wiring),
        delivery_id=clock.new_id("de"),
        api=ask.api,
        stream=ask.stream,
        asked_at=now,
        lease_until=now + wiring.settings.timeouts.lease_s,
        owner=wiring.owner,
        exclusive_seed=rules[0].must_be_exclusive and not decision.profile.is_greedy,
        most_calls=wiring.settings.limits.calls_per_rollout,
    )


def repeat_mark(decision: Decision, rule: SeedRule, wiring: Wiring) -> RepeatMark:
    """Requests with one hash are identical: the same lane asks the same thing to be drawn in the same way.

    The same thing is more than the same meaning: what goes on from another reply is drawn on another prompt.
    """
    ask, sampling = decision.ask, decision.sampling
    lane = {name: value for name, value in ask.identity.lane_signals.items() if name != NO_LANE_SIGNAL}
    # What the context or a budget leaves is no part of what is asked: it shrinks between a call and its retry.
    length = sampling.length | {"max_tokens": [asked_max_tokens(ask.chat), decision.profile.max_tokens_cap]}
    # A client's seed counts only where it decides something; one that is overridden may change between tries.
    client_seed = None if wiring.settings.client_seed == "override" else sampling.asked.get("seed")
    # Where settings change between tries, or between proxies, the old seed would be told as made by the new ones.
    seeding = [rule.source, rule.run_seed]
    parallel = ask.chat.get("parallel_tool_calls")
    drawn_by = [dict(sampling.effective), length, sampling.shaping, parallel, client_seed, seeding]
    asked = [ask.api, ask.conversation.context, told_apart(ask)]
    shown = [ask.wants_logprobs, ask.top_logprobs]
    return RepeatMark(
        ask_hash=digest([ASK_MARK, lane, asked, drawn_by, ask.choices, shown]),
        idempotency_key=ask.identity.idempotency_key,
        is_retry=ask.identity.retry_count > 0 and not wiring.refusals.explain(ask),
    )


def make_plan(decision: Decision, request_id: str, call_id: CallId, seed: Seed, asked: Reservation) -> Plan:
    """Every decision about one call in one place."""
    return Plan(
        call_id=call_id,
        request_id=request_id,
        ask=decision.ask,
        profile=decision.profile,
        parent=decision.parent,
        sampling=decision.sampling,
        seed=seed,
        prefix=decision.prefix,
        engine=decision.engine,
        started_at=asked.asked_at,
        audit_top=decision.audit_top,
    )
