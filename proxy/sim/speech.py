"""Who answers a request: scripted words, the scenario's agent, or the toy model by itself."""

from typing import Any

from proxy.sim.ask import Ask, Setup
from proxy.sim.draw import EMPTY_THOUGHT, is_thinking, turn_start
from proxy.sim.scenario import Scenario, ToolCall, Turn
from proxy.sim.script import Say
from proxy.sim.voices import Chatter, Dictation, Recital, Voice, fold


def voice_for(ask: Ask, say: Say | None, setup: Setup, weights: str = "") -> Voice:
    """The voice of one choice, brought to where the prompt leaves it in the middle of a turn.

    `weights` names those that speak, or a mixture of those that computed the cache and those that go on.
    """
    prompt, start = ask.prompt, turn_start(ask.prompt)
    context = fold(prompt[:start], fold((setup.model + weights).encode()))
    if say is not None:
        return Dictation(context, _unsaid(say, ask, start), say.finish or "stop")
    thinks = ask.parsing.thinking and prompt[start - len(EMPTY_THOUGHT) : start] != EMPTY_THOUGHT
    voice: Voice = Chatter(context, thinks=thinks)
    turns = _turns(ask.body, setup.scenario)
    if turns is not None:
        printed = [said.ids(thinking=False) for said in turns]
        voice = Recital(printed, Chatter(context, thinks=thinks), thinks=thinks)
    for token_id in prompt[start:]:
        voice.feed(token_id)
    return voice


def _unsaid(say: Say, ask: Ask, start: int) -> tuple[int, ...]:
    """The scripted reply, or the rest of it where the prompt already holds its beginning."""
    begun = ask.prompt[start:]
    whole = say.ids(thinking=ask.parsing.thinking and is_thinking(ask.prompt[:start]))
    if begun and whole[: len(begun)] == begun:
        return whole[len(begun) :]
    return say.ids(thinking=ask.parsing.thinking and is_thinking(ask.prompt))


def _turns(body: dict[str, Any], scenario: Scenario | None) -> list[Say] | None:
    """What the scenario's agent may say; calls and nothing else where the request must call a tool."""
    said = scenario.says(body) if scenario else None
    choice = body.get("tool_choice")
    if choice != "required" and not isinstance(choice, dict):
        return said
    named = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
    calling = [Say(calls=one.calls) for one in said or () if one.calls and named in (None, one.calls[0].name)]
    return calling or Scenario("tool_choice", (Turn((), (ToolCall(named, ({},)),)),), repeat=True).says(body)
