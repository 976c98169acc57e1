"""Small draws from an engine, made exactly as calls are: by a plan, the engine's dialect, its gate, and the same fold.

For experiments that show what an engine does. They ask for a hot distribution, so that two seeds that give the same
tokens give them for a reason, and by default for the class of sampling that filters nothing.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from proxy import clock
from proxy.engine.dialect import Dialect
from proxy.engine.fold import ReplyFold
from proxy.engine.upstream import Upstream
from proxy.model import (
    Ask,
    CallId,
    Completion,
    Conversation,
    EngineRef,
    EngineRequest,
    Identity,
    JsonObject,
    Parent,
    Plan,
    Prefix,
    Profile,
    Rollout,
    RolloutId,
    Sampling,
    Seed,
)

# Flat enough that a dozen tokens of two seeds are never the same by chance, and within what both engines take.
HOT = Profile("probe", temperature=2.0)
TOKENS = 12
QUESTION: JsonObject = {"role": "user", "content": "Tell me of something old, something new and something blue."}


@dataclass(frozen=True, slots=True)
class Draw:
    """One experiment's request."""

    seed: int
    profile: Profile = HOT
    max_tokens: int = TOKENS
    stream: bool = False
    prompt_ids: tuple[int, ...] = ()
    """Exact ids to go on from; they must be the engine's own, since others may kill it. Empty lets it render."""
    top_logprobs: int = 0
    leave_out: Sequence[str] = field(default=())
    """Fields of the body that are not sent: what the engine puts in their place is the experiment."""


class Lab:
    """One engine on the bench."""

    def __init__(self, upstream: Upstream, engine: EngineRef, dialect: Dialect) -> None:
        self.engine = engine
        self._upstream = upstream
        self._dialect = dialect

    async def draw(self, draw: Draw, begun: asyncio.Event | None = None) -> Completion:
        """What the engine draws; `begun` is set when the first of it arrives. Raises EngineFault."""
        plan = plan_of(draw, self.engine)
        fold = ReplyFold(plan, self._dialect.read_tokens, self._dialect.reasoning_key)
        async with self._upstream.ask(self.engine, self._request(plan, draw), plan.call_id) as events:
            async for event in events:
                fold.feed(event)
                if begun is not None:
                    begun.set()
        return fold.finish()

    def _request(self, plan: Plan, draw: Draw) -> EngineRequest:
        request = self._dialect.encode(plan)
        return replace(
            request, body={name: value for name, value in request.body.items() if name not in draw.leave_out}
        )


def plan_of(draw: Draw, engine: EngineRef) -> Plan:
    """The plan of an experiment; nothing of it is ever recorded."""
    body = {"messages": [QUESTION]}
    ask = Ask(
        identity=Identity(_NOBODY, lane_signals={}, idempotency_key=None, retry_count=0),
        api="chat",
        body=body,
        chat=body,
        messages=(QUESTION,),
        volatile=(),
        conversation=Conversation(history=(), tools_hash="", template_hash="", context="", has_assistant=False),
        stream=draw.stream,
        choices=1,
        include_usage=True,
        wants_logprobs=True,
        top_logprobs=draw.top_logprobs,
        requested_model=None,
        has_tools=False,
    )
    return Plan(
        call_id=CallId(clock.new_id("pr")),
        request_id=clock.new_id("rq"),
        ask=ask,
        profile=draw.profile,
        parent=Parent("root", "probe"),
        sampling=Sampling(
            effective=draw.profile.pinned(),
            asked={},
            overridden=(),
            length={"max_tokens": draw.max_tokens},
            shaping={},
            constrained=(),
            ignored=(),
        ),
        seed=Seed(draw.seed, "minted", occurrence=0, choice=0),
        prefix=Prefix(
            eligible=bool(draw.prompt_ids),
            requested=bool(draw.prompt_ids),
            supplied=False,
            length=len(draw.prompt_ids),
            reason="probe",
            token_ids=draw.prompt_ids,
        ),
        engine=engine,
        started_at=clock.now(),
    )


_NOBODY = Rollout(
    rollout_id=RolloutId("probe"),
    run="probe",
    group="probe",
    sample=0,
    attempt=0,
    profile=HOT.name,
    sampling={},
    state="open",
    created_at=0,
    expires_at=None,
)
