"""Exact prefixes: the ids of the conversation so far, for the engine to go on from instead of rendering it anew.

What the ids are is decided in request/joint.py; here its questions are put to the engine. Whatever stands in the way is
a reason on the call, which then goes out as the harness wrote it and begins a new branch.
"""

import asyncio
from dataclasses import dataclass, replace

from proxy.engine.answer import Answer as Told
from proxy.engine.answer import decoded_text, rendered_ids, told_error
from proxy.engine.dialect import engine_messages
from proxy.engine.pool import DIALECTS
from proxy.engine.upstream import Upstream
from proxy.errors import EngineFault
from proxy.ids import pack_ids, shared_ids
from proxy.model import (
    Ask,
    EngineFacts,
    EngineRef,
    EngineRequest,
    Failure,
    JsonObject,
    Outcome,
    Parent,
    Prefix,
    Profile,
    SampledTurn,
)
from proxy.request.joint import find_tail
from proxy.request.joint_turn import Answer, Decode, Habits, Question, Refused, Steps, Tail, Turn, Unrendered
from proxy.wiring import Wiring

# The engine did not answer what its template makes of the request.
RENDER_FAILED = "render_failed"


async def supply_prefix(ask: Ask, parent: Parent, profile: Profile, engine: EngineRef, wiring: Wiring) -> Prefix:
    """The parent's prompt and sampled ids and the tail behind them, or why the engine is to render by itself."""
    if parent.call_id is None or parent.told_from is None:
        return unsupplied(parent.reason, eligible=False)
    if not profile.prefix_supply:
        return unsupplied("off_in_profile", eligible=False)
    sampled = await wiring.store.sampled_turn(ask.identity.rollout_id, parent.call_id)
    if sampled is None:
        return unsupplied("parent_without_ids")
    if barred := barrier(ask, sampled, engine.facts):
        return unsupplied(barred)
    habits = wiring.templates.habits(engine.facts.fingerprint or engine.url, ask.conversation.template_hash)
    turn = turn_of(ask, parent.told_from, sampled, engine, habits)
    found = await settle(find_tail(turn, habits), Template(ask, engine, wiring.upstream))
    if isinstance(found, Refused):
        return unsupplied(found.reason, found.detail)
    return exact_prefix(sampled, found, engine.facts)


def unsupplied(reason: str, detail: str = "", *, eligible: bool = True) -> Prefix:
    return Prefix(eligible=eligible, requested=False, supplied=False, length=0, reason=reason, detail=detail)


def barrier(ask: Ask, sampled: SampledTurn, facts: EngineFacts) -> str | None:
    """What keeps exact ids from this engine, whatever the template does."""
    if facts.takes_exact_prompts is False:
        return "engine_ignores_ids"
    if facts.fingerprint is None or sampled.fingerprint != facts.fingerprint:
        return "another_tokenizer"
    if facts.kind == "sglang" and facts.vocabulary is None:
        return "vocabulary_unknown"
    if may_lack_tools(ask, sampled):
        return "tools_hidden"
    return "continues_final_message" if ask.chat.get("continue_final_message") else None


def may_lack_tools(ask: Ask, sampled: SampledTurn) -> bool:
    """Whether the parent's prompt may tell of one tool where this request offers several.

    SGLang shows the model the named tool alone where a choice names one (`_process_messages` of 0.5.23).
    """
    is_named = isinstance(sampled.tool_choice, dict) and sampled.engine_kind == "sglang"
    return is_named and len(ask.chat.get("tools") or ()) > 1 and ask.chat.get("tool_choice") != sampled.tool_choice


def turn_of(ask: Ask, told_from: int, sampled: SampledTurn, engine: EngineRef, habits: Habits) -> Turn:
    """The request around its parent's turn, in the engine's own form."""
    dialect = DIALECTS[engine.facts.kind]
    messages = engine_messages(ask, dialect)
    last = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    return turn_in(messages, told_from, last + 1, sampled, dialect.reasoning_key, habits)


def turn_in(
    messages: tuple[JsonObject, ...], start: int, stop: int, sampled: SampledTurn, reasoning_key: str, habits: Habits
) -> Turn:
    """The turn that messages[start:stop] tell, with what the engine said of its end; its end token is learned."""
    is_natural = ended_by_itself(sampled, habits)
    if is_natural:
        habits.ends.add(sampled.completion_ids[-1])
    return Turn(
        messages=messages,
        start=start,
        stop=stop,
        sampled=sampled.completion_ids,
        is_natural=is_natural,
        stops=sampled.stops,
        is_over=is_over(sampled) and not sampled.has_stop_ids,
        is_at_stop_id=(sampled.matched_stop,) == sampled.completion_ids[-1:],
        reasoning=sampled.reasoning,
        reasoning_key=reasoning_key,
    )


def ended_by_itself(sampled: SampledTurn, habits: Habits) -> bool:
    """Whether the last sampled id is an end token: by what the engine says, else by what was seen of it before.

    vLLM names whatever else ended a reply. SGLang names an end token like a stop id, hides what ended a reply that
    called tools, and gives a stop string that happens to be the end token as a string.
    """
    last = sampled.completion_ids[-1:]
    if not last:
        return False
    if is_over(sampled) and _is_end_token(sampled):
        return True
    return last[0] in habits.ends


def is_over(sampled: SampledTurn) -> bool:
    """Whether it ended by what was sampled, not by a limit."""
    return sampled.finish_reason in {"stop", "tool_calls"}


def _is_end_token(sampled: SampledTurn) -> bool:
    """Whether nothing else can have ended it."""
    match sampled.matched_stop:
        case None:
            return sampled.engine_kind != "sglang" or not (sampled.stops or sampled.has_stop_ids)
        case int():
            return not sampled.has_stop_ids
        case str():
            return False


def exact_prefix(sampled: SampledTurn, tail: Tail, facts: EngineFacts) -> Prefix:
    """All ids in a row, if each is one that the engine knows."""
    ids = (*sampled.prompt_ids, *sampled.completion_ids, *tail.ids)
    if facts.vocabulary is not None and max(ids) >= facts.vocabulary:
        return unsupplied("id_out_of_vocabulary")
    shared = shared_ids(pack_ids(sampled.prompt_ids), pack_ids(tail.rendered))
    return Prefix(
        eligible=True,
        requested=True,
        supplied=False,
        length=len(ids),
        reason=tail.end,
        drift_at=shared if shared < len(sampled.prompt_ids) else None,
        token_ids=ids,
        parent_length=len(ids) - len(tail.ids),
    )


def prove(prefix: Prefix, outcome: Outcome) -> Prefix:
    """What the ids that came back say: sent is not yet taken."""
    if not prefix.requested:
        return prefix
    completion = outcome.partial if isinstance(outcome, Failure) else outcome
    came = completion.tokens.prompt_ids if completion else ()
    if came == prefix.token_ids:
        return replace(prefix, supplied=True)
    return replace(prefix, reason="other_ids_came_back" if came else "no_ids_came_back")


@dataclass(frozen=True, slots=True)
class Template:
    """An engine's chat template and tokenizer, with the tools and template arguments of one request."""

    ask: Ask
    engine: EngineRef
    upstream: Upstream

    async def answer(self, question: Question) -> Answer:
        """Raises EngineFault where the engine does not answer."""
        dialect = DIALECTS[self.engine.facts.kind]
        if isinstance(question, Decode):
            if not question.ids:
                return ""
            told = await self._put(dialect.decode(self.engine, question.ids))
            return _text(told)
        told = await self._put(
            dialect.render(self.ask, self.engine, question.messages, generation_prompt=question.generation_prompt)
        )
        return _ids(told)

    async def _put(self, request: EngineRequest) -> Told:
        return await self.upstream.question(self.engine.url, request.path, request.body, api_key=self.engine.api_key)


async def settle(steps: Steps, template: Template) -> Tail | Refused:
    """Put the questions of each step to the engine, all of one step at once."""
    try:
        questions = next(steps)
        while True:
            answers = await asyncio.gather(*map(template.answer, questions))
            questions = steps.send(tuple(answers))
    except StopIteration as stop:
        outcome: Tail | Refused = stop.value
        return outcome
    except EngineFault as fault:
        return Refused(RENDER_FAILED, fault.message)


def _ids(told: Told) -> tuple[int, ...] | Unrendered:
    if told.status == 400:
        return Unrendered(told_error(told))
    ids = rendered_ids(told)
    if ids is None:
        raise EngineFault("engine_malformed", 502, f"/tokenize answered {told.status}: {told.text}")
    return ids


def _text(told: Told) -> str:
    text = decoded_text(told)
    if text is None:
        raise EngineFault("engine_malformed", 502, f"/detokenize answered {told.status}: {told.text}")
    return text
