"""One choice of a request, asked for until its reply really ends.

An engine that is paused for new weights, or told to abort, ends a reply in the middle. The rest is then asked for
behind the exact ids that had arrived, and the client sees one reply. What it had been shown by then stays; from there
on everything is held back until the whole is there, because parsers begin anew in each part (engine/whole.py).
"""

from dataclasses import replace

from proxy import clock
from proxy.echo import client_message, tool_call_id
from proxy.engine.controls import trusts_salt
from proxy.engine.dialect import Dialect
from proxy.engine.fold import ABORTED, MessageFold, ReplyFold
from proxy.engine.parts import NOT_GONE_ON, Part, cut, drawn_so_far, join, segments_of
from proxy.engine.seam import SeamShows, continued, rest_events, showable
from proxy.engine.whole import may_be_end, read_whole
from proxy.model import (
    Completion,
    EngineKind,
    EngineRef,
    EngineRequest,
    Failure,
    JsonObject,
    Outcome,
    Plan,
    Segment,
    Weights,
)
from proxy.request.resume import is_position_keyed, rest_of, resume_obstacle
from proxy.request.seed import SeedRule
from proxy.running import Running
from proxy.wiring import Wiring

BY_LENGTH = "length"
# What asks for the experts of a mixture; vLLM returns them where the server was started for it, and needs no asking.
ROUTED_EXPERTS: dict[EngineKind, JsonObject] = {"sglang": {"return_routed_experts": True}}


class Asking:
    """The parts of one reply as they come, and what its readers have been shown of it."""

    def __init__(self, running: Running, plan: Plan, dialect: Dialect, wiring: Wiring) -> None:
        self._running = running
        self._plan = plan
        self._dialect = dialect
        self._wiring = wiring
        self._started = clock.ticks()
        self._parts: list[Part] = []
        self._growing: tuple[Plan, ReplyFold, Weights] | None = None
        self._held: list[JsonObject] = []
        self._interruptions = 0
        self._lapses = 0
        self.first_event_s: float | None = None
        self.connections = 0
        """How many had been opened to the engine when the last of what it told was begun."""
        self.is_disturbed = False
        """Whether any part shared a batch with a call of another sampling class."""

    async def outcome(self) -> Outcome:
        """Ask, and ask on after each interruption. Raises EngineFault."""
        while True:
            part = await self._ask(self._next_plan())
            if part.completion.finish_reason != ABORTED:
                return await self._settle(part)
            self._interruptions += 1
            if ended := await self._interrupted(part):
                return ended

    def partial(self) -> Completion:
        """All that has arrived so far."""
        return join(self._all_parts() or (Part(self._plan, self._fold(self._plan).partial()),))

    def segments(self) -> tuple[Segment, ...]:
        """Who drew what so far."""
        return segments_of(self._all_parts())

    def drawn_by(self, engine: EngineRef) -> None:
        """Label nothing by what was told of another process than the one that turned out to answer."""
        doubted = self._wiring.weights.doubted
        self._parts = [replace(part, after=doubted(part.after, engine)) for part in self._parts]

    def _all_parts(self) -> tuple[Part, ...]:
        if self._growing is None:
            return tuple(self._parts)
        plan, fold, before = self._growing
        # Nobody has looked behind it.
        is_present = not self._wiring.presence.is_shared
        after = self._wiring.weights.of(plan.engine)
        return (*self._parts, self._part(plan, fold.partial(), before, after, is_present=is_present))

    def _next_plan(self) -> Plan:
        """The plan as it is, or for the rest of its reply."""
        if not self._parts:
            return self._plan
        seed = self._plan.seed.value if is_position_keyed(self._plan) else self._seed_of(len(self._parts))
        return rest_of(self._plan, drawn_so_far(self._parts), seed)

    def _seed_of(self, segment: int) -> int:
        """A seed of its own for a segment: the engine would begin the call's noise anew."""
        ask, seed = self._plan.ask, self._plan.seed
        mode, run_seed = self._wiring.settings.client_seed, self._wiring.run_seed
        rule = SeedRule(mode, run_seed, ask.identity, ask.conversation.context, seed.choice, seed.client_seed)
        return rule.mint(seed.occurrence, segment)

    async def _ask(self, plan: Plan) -> Part:
        """One exchange, once the engines are not paused; its events are shown unless an earlier part has been."""
        while True:
            async with self._wiring.pauses.passage():
                self._lapses = self._wiring.presence.lapses
                if await self._wiring.presence.is_counted():
                    return await self._exchange(plan)

    async def _exchange(self, plan: Plan) -> Part:
        weights = self._wiring.weights
        await weights.refresh()
        if weights.of(plan.engine).version is None:
            await weights.look(plan.engine)
        before, request = weights.of(plan.engine), weights.salted(plan.engine, self._encode(plan))
        fold, self._held = self._fold(plan), []
        self._growing = plan, fold, before
        async with self._wiring.upstream.ask(plan.engine, request, plan.call_id) as events:
            self._count_connections()
            async for event in events:
                self.first_event_s = self.first_event_s or clock.ticks() - self._started
                said = fold.feed(event)
                if fold.ended:
                    self._held.append(said)
                elif not self._parts and not (self._interruptions and _says_nothing(said)):
                    self._show(said)
            self.is_disturbed |= events.is_disturbed
        completion = fold.finish()
        # Where the reply itself tells who drew it, and tells nothing new, nothing needs to be asked.
        is_told = {span["version"] for span in completion.weight_versions} == {before.version}
        patience_s = self._wiring.settings.timeouts.commit_wait_s
        after = weights.of(plan.engine) if is_told else await weights.look_behind(plan.engine, patience_s)
        is_present = await self._wiring.presence.is_unbroken(self._lapses, patience_s)
        self._growing = None
        return self._part(plan, completion, before, after, is_present=is_present)

    def _show(self, said: JsonObject) -> None:
        """Let readers have an event, unless an abort may have brought it about."""
        shown, self._held = showable(self._held, said)
        for event in shown:
            self._running.publish(self._plan.seed.choice, event)

    def _encode(self, plan: Plan) -> EngineRequest:
        request = self._dialect.encode(plan)
        if not self._wiring.settings.capture_routed_experts:
            return request
        return replace(request, body={**request.body, **ROUTED_EXPERTS.get(self._dialect.kind, {})})

    def _part(self, plan: Plan, completion: Completion, before: Weights, after: Weights, *, is_present: bool) -> Part:
        if not self._wiring.settings.capture_routed_experts:
            completion = replace(completion, routed_experts=())
        is_cache_apart = trusts_salt(plan.engine.facts)
        return Part(plan, completion, before, after, is_cache_apart=is_cache_apart, is_present=is_present)

    def _fold(self, plan: Plan) -> ReplyFold:
        return ReplyFold(plan, self._dialect.read_tokens, self._wiring.settings.reasoning_field)

    async def _interrupted(self, part: Part) -> Outcome | None:
        """Take in what had arrived; None where the rest may be asked for."""
        completion = part.completion
        ids = completion.tokens.completion_ids
        is_bare = not ids and not _said_of(completion)
        if not is_bare:
            self._parts.append(part)
        if self._interruptions > self._wiring.settings.resume_attempts:
            return self._not_resumed("resume_attempts")
        if is_bare:
            return None
        if obstacle := resume_obstacle(self._plan, completion) or await self._unreadable():
            return self._not_resumed(obstacle)
        if self._plan.sampling.max_tokens == len(drawn_so_far(self._parts).completion_ids):
            self._parts.pop()
            return await self._settle(self._ended_by_length(part))
        if await self._is_end_uncertain(ids[-1]):
            if not is_position_keyed(self._plan):
                return self._not_resumed("end_uncertain")
            self._drop_last()
        return None

    def _ended_by_length(self, part: Part) -> Part:
        """A part whose budget was used up when the abort came; nothing is left to ask for."""
        for event in self._held:
            for choice in event.get("choices") or ():
                choice["finish_reason"] = choice.get("finish_reason") and BY_LENGTH
        return replace(part, completion=replace(part.completion, finish_reason=BY_LENGTH))

    async def _unreadable(self) -> str | None:
        """Why the message could not be read off all ids at the end; tried on what the engine itself has just read."""
        if len(self._parts) > 1:
            return None
        first = self._parts[0].completion
        whole = await self._read(self._parts, BY_LENGTH)
        if whole is None:
            return "message_unreadable"
        try:
            # A call that the cut fell into is shown by streams alone.
            continued(first.engine_message | {"tool_calls": None}, whole | {"tool_calls": None})
        except SeamShows:
            return "parsers_disagree"
        return None

    async def _is_end_uncertain(self, token: int) -> bool:
        """SGLang looks for an abort before it looks for an end: the last token of an aborted reply may be one."""
        if self._plan.engine.facts.kind != "sglang":
            return False
        stops = self._plan.sampling.length.get("stop_token_ids") or ()
        return token in stops or await may_be_end(self._wiring.upstream, self._plan, token)

    def _drop_last(self) -> None:
        """Have the last token drawn again, by the same noise, so that the engine can say whether it ends the reply."""
        part = self._parts.pop()
        kept = len(part.completion.tokens.completion_ids) - 1
        if kept:
            self._parts.append(replace(part, completion=cut(part.completion, kept)))

    async def _settle(self, part: Part) -> Outcome:
        """The reply has ended: judge it, and hold what shows its end."""
        self._parts.append(part)
        completion = join(self._parts)
        if len(self._parts) > 1:
            return await self._settle_whole(completion)
        outcome = judge(completion, may_mask=self._may_mask)
        for event in self._held:
            self._running.hold(self._plan.seed.choice, event)
        return outcome

    async def _settle_whole(self, completion: Completion) -> Outcome:
        """A reply of several parts: its message is read off all ids, and goes on from what was shown."""
        if NOT_GONE_ON in completion.capture_gaps:
            return self._failed("the engine did not go on from the ids that it was given")
        outcome = judge(completion, may_mask=self._may_mask)
        if isinstance(outcome, Failure):
            return outcome
        read = await self._read(self._parts, completion.finish_reason or "")
        if read is None:
            return self._failed("the engine did not read the whole message")
        shown, entries_shown = self._shown()
        try:
            whole = self._with_ids(continued(shown, read))
        except SeamShows:
            return self._failed("what was shown before the interruption is no beginning of the whole message")
        finish = _finish_of(completion, whole)
        for event in rest_events(shown, whole, completion.logprob_entries[entries_shown:], finish):
            self._running.hold(self._plan.seed.choice, event)
        reasoning_field = self._wiring.settings.reasoning_field
        return _spoken(completion, whole, client_message(whole, self._plan, reasoning_field), finish)

    async def _read(self, parts: list[Part], finish_reason: str) -> JsonObject | None:
        tokens = drawn_so_far(parts)
        message = await read_whole(self._wiring.upstream, self._dialect, self._plan, tokens, finish_reason)
        self._count_connections()
        return message

    def _count_connections(self) -> None:
        self.connections = self._wiring.upstream.connections.opened(self._plan.engine.url)

    def _shown(self) -> tuple[JsonObject, int]:
        """The message as readers have it so far, and how many tokens' logprobs they have."""
        fold, entries = MessageFold(), 0
        for event in self._running.shown(self._plan.seed.choice):
            for choice in event.get("choices") or ():
                fold.feed(choice.get("delta") or {})
                entries += len((choice.get("logprobs") or {}).get("content") or ())
        return fold.whole(), entries

    def _with_ids(self, message: JsonObject) -> JsonObject:
        """Calls that no engine gave an id go by the client's own."""
        calls = [
            {**call, "id": call["id"] or tool_call_id(self._plan, index)}
            for index, call in enumerate(message.get("tool_calls") or ())
        ]
        return message | ({"tool_calls": calls} if calls else {})

    @property
    def _may_mask(self) -> bool:
        return self._wiring.settings.missing_ids == "mask"

    def _not_resumed(self, obstacle: str) -> Failure:
        message = f"the engine aborted the reply before it was complete, and it was not resumed: {obstacle}"
        return Failure("engine_aborted", 503, message, retry_after_s=1, partial=self.partial())

    def _failed(self, why: str) -> Failure:
        message = f"the reply was interrupted and could not be put together: {why}"
        return Failure("resume_failed", 503, message, retry_after_s=1, partial=self.partial())


def judge(completion: Completion, *, may_mask: bool) -> Outcome:
    """A reply that ended is a completion only if the engine did not break it and its tokens are whole."""
    if completion.finish_reason == "error":
        return Failure("engine_error", 502, "the engine ended the reply with an error", partial=completion)
    if completion.captured or may_mask:
        return completion
    message = f"the engine's reply cannot be recorded token for token: {', '.join(completion.capture_gaps)}"
    return Failure("missing_ids", 502, message, may_retry=False, partial=completion)


def _says_nothing(event: JsonObject) -> bool:
    """Whether a stream's event only opens the message: once is enough."""
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
    return not any(value for delta in deltas for name, value in delta.items() if name != "role")


def _said_of(completion: Completion) -> bool:
    message = completion.engine_message
    return bool(message["content"] or len(message) > 2)


def _finish_of(completion: Completion, whole: JsonObject) -> str | None:
    """The engine's word for the last part's end, set right for the whole: a call turns `stop` into `tool_calls`."""
    if completion.finish_reason not in {"stop", "tool_calls"}:
        return completion.finish_reason
    return "tool_calls" if whole.get("tool_calls") else "stop"


def _spoken(completion: Completion, said: JsonObject, shown: JsonObject, finish: str | None) -> Completion:
    return replace(completion, engine_message=said, message=shown, finish_reason=finish)
