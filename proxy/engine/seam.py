"""What may be shown of a message that may be interrupted, and what is still to be shown of the whole: no seam. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from proxy.model import JsonObject

TEXTS = ("reasoning", "content", "refusal")
# What stands for bytes that are no character, or not yet one.
NO_CHARACTER = "\ufffd"


class SeamShows(Exception):
    """What was shown is no beginning of the whole message."""


def showable(kept: Sequence[JsonObject], event: JsonObject) -> tuple[list[JsonObject], list[JsonObject]]:
    """The events that readers may have now that `event` has come behind those that were kept back, and the rest.

    An engine that aborts a reply first tells what it had waited with. SGLang (0.5.23) shows half a character as U+FFFD
    and closes what is open of a call's arguments; neither is a beginning of the whole. So what may be told for that
    reason is kept back until more is said: an engine that goes on behind it meant it, bytes that are no UTF-8 among it.
    """
    doubts = list(_doubts(event))
    if kept and not doubts:
        return [], [*kept, event]
    return (list(kept), [event]) if any(doubts) else ([*kept, event], [])


def _doubts(event: JsonObject) -> Iterator[bool]:
    """Of each text that an event tells, whether an abort may have brought it about."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        yield from (delta[name].endswith(NO_CHARACTER) for name in (*TEXTS, "reasoning_content") if delta.get(name))
        for piece in delta.get("tool_calls") or ():
            yield bool((piece.get("function") or {}).get("arguments"))


def continued(said: JsonObject, whole: JsonObject) -> JsonObject:
    """The whole message as one sees it who was told `said` before; raises SeamShows where that cannot be.

    Parsers strip blanks around a text that they read at once, and let them through in a stream: such blanks stay.
    """
    message: JsonObject = {"role": "assistant", "content": _text(said.get("content"), whole.get("content"))}
    for name in TEXTS:
        if name != "content" and (text := _text(said.get(name), whole.get(name))):
            message[name] = text
    if calls := _calls(said.get("tool_calls") or (), whole.get("tool_calls") or ()):
        message["tool_calls"] = calls
    return message


def rest_events(
    said: JsonObject, whole: JsonObject, entries: Sequence[Any], finish_reason: str | None
) -> list[JsonObject]:
    """The engine's events that lead from `said` to `whole`, one for each kind of text, and the end."""
    deltas = [{name: rest} for name in TEXTS if (rest := (whole.get(name) or "")[len(said.get(name) or "") :])]
    if pieces := list(_pieces(said.get("tool_calls") or (), whole.get("tool_calls") or ())):
        deltas.append({"tool_calls": pieces})
    events = [_event(delta) for delta in deltas]
    if entries:
        # Where nothing is left to say, the logprobs of markup and of the end token still are.
        events = events or [_event({})]
        events[0]["choices"][0]["logprobs"] = {"content": list(entries)}
    return [*events, _event({}, finish_reason)]


def _event(delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _text(said: str | None, whole: str | None) -> str | None:
    if not said:
        return whole
    told, bare = whole or "", said.lstrip()
    if told.startswith(said):
        return told
    if not bare:
        return said + told.lstrip()
    if told.startswith(bare):
        return said + told[len(bare) :]
    if told == bare.rstrip() or told == said.rstrip():
        return said
    raise SeamShows


def _calls(said: Sequence[JsonObject], whole: Sequence[JsonObject]) -> list[JsonObject]:
    if len(said) > len(whole):
        raise SeamShows
    return [_call(said[place] if place < len(said) else None, call) for place, call in enumerate(whole)]


def _call(said: JsonObject | None, whole: JsonObject) -> JsonObject:
    """A call under the id that it was shown under."""
    if said is None:
        return whole
    shown, told = said["function"], whole["function"]
    if shown["name"] != told["name"] or not told["arguments"].startswith(shown["arguments"]):
        raise SeamShows
    return {**whole, "id": said.get("id") or whole.get("id")}


def _pieces(said: Sequence[JsonObject], whole: Sequence[JsonObject]) -> Iterator[JsonObject]:
    for index, call in enumerate(whole):
        function = call["function"]
        if index >= len(said):
            yield {"index": index, "id": call["id"], "type": "function", "function": function}
        elif rest := function["arguments"][len(said[index]["function"]["arguments"]) :]:
            yield {"index": index, "function": {"arguments": rest}}
