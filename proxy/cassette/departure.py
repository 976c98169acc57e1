"""Where a request leaves the recorded run: what is asked now against what was recorded, message by message. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from proxy.model import Ask, JsonObject

LONGEST_PIECE = 240
# Text before the first difference that is shown with it.
LEAD = 40
ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Departure:
    """A request that no recorded call answers."""

    headline: str
    lines: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "\n".join((self.headline, *self.lines))


def depart(ask: Ask, recorded: JsonObject, history: Sequence[str], *, tools_agree: bool) -> Departure:
    """How a request differs from the recorded call that is nearest to it; `history` is that call's chain of hashes."""
    asked = ask.conversation.history
    same = sum(1 for one, other in zip(asked, history, strict=False) if one == other) - 1
    call_id = recorded["call_id"]
    if len(asked) == len(history) == same + 1:
        if tools_agree:
            return Departure(f"asked once more than was recorded: {call_id} and all its repeats were played")
        return Departure(f"tools or template arguments differ from those of {call_id}", tuple(_tools(ask, recorded)))
    headline = f"departs from the recorded run at message {same}: the nearest recorded call is {call_id}"
    pairs = zip_longest(recorded["messages"], ask.messages)
    return Departure(headline, tuple(line for place, pair in enumerate(pairs) for line in _lines(place, pair, same)))


def _lines(place: int, pair: tuple[JsonObject | None, JsonObject | None], same: int) -> Iterator[str]:
    recorded, asked = pair
    if place < same:
        yield f"  message {place} {(asked or {}).get('role')}: the same"
        return
    ours, theirs = _shown(recorded), _shown(asked)
    start = max(0, _shared(ours, theirs) - LEAD)
    if recorded is not None:
        yield f"- message {place} {recorded.get('role')}, recorded: {_piece(ours, start)}"
    if asked is not None:
        yield f"+ message {place} {asked.get('role')}, asked: {_piece(theirs, start)}"


def _shared(one: str, other: str) -> int:
    """How many leading characters two texts have in common."""
    differing = (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))


def _shown(message: JsonObject | None) -> str:
    """A message less its role, on one line."""
    if message is None:
        return ""
    rest = {name: value for name, value in message.items() if name != "role" and value is not None}
    if set(rest) == {"content"} and isinstance(rest["content"], str):
        return json.dumps(rest["content"], ensure_ascii=False)
    return json.dumps(rest, ensure_ascii=False)


def _piece(text: str, start: int) -> str:
    """The part around a difference."""
    piece = text[start : start + LONGEST_PIECE]
    return (ELLIPSIS if start else "") + piece + (ELLIPSIS if start + LONGEST_PIECE < len(text) else "")


def _tools(ask: Ask, recorded: JsonObject) -> Iterator[str]:
    told = recorded.get("chat_request") or recorded["request"]
    yield f"- tools recorded: {', '.join(_names(told)) or 'none'}"
    yield f"+ tools asked: {', '.join(_names(ask.chat)) or 'none'}"


def _names(body: JsonObject) -> list[str]:
    tools = body.get("tools") or []
    return [str((tool.get("function") or tool).get("name")) for tool in tools if isinstance(tool, dict)]
