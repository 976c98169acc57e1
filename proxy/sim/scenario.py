"""Scripted agents: what the model says and which tools it calls at which turn, for any harness's tool set.

A scenario is a TOML file; docs/sim.md describes it. A turn has phrasings, and the draw chooses among them, so the
samples of a group differ and every one can be drawn again.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.sim.schemas import filled, knows, takes
from proxy.sim.script import Say, ToolSay
from proxy.sim.template import Json

BUILT_IN = Path(__file__).with_name("scenarios")
LONGEST_RESULT = 400
SUM = re.compile(r"(-?\d+(?:\.\d+)?)\s*([-+*/x\u00d7\u00f7])\s*(-?\d+(?:\.\d+)?)")
OPERATORS = {"x": "*", "\u00d7": "*", "\u00f7": "/"}
OPERATIONS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
PLACEHOLDER = re.compile(r"\{(\w+)\}")
PLACEHOLDERS = frozenset({"task", "result", "expression", "left", "right", "operator", "operation"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call to make."""

    tool: str | None
    """None takes the first tool of the request that takes the arguments."""
    arguments: tuple[Json, ...]
    """Alternatives: the first set that a tool takes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens at one turn."""

    say: tuple[str, ...]
    """Phrasings, of which the draw chooses one."""
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """An agent's turns, counted by the assistant messages of the conversation so far."""

    name: str
    turns: tuple[Turn, ...]
    repeat: bool
    """Begin anew after the last turn instead of saying it again."""

    def says(self, body: Json) -> list[Say]:
        """The turns that are possible now, one for each phrasing that can be filled in; none if there is no such."""
        messages = body["messages"]
        tools = [] if body.get("tool_choice") == "none" else list(body.get("tools") or ())
        turn, facts = self._turn(messages, has_tools=bool(tools)), facts_of(messages)
        calls = tuple(_call(call, tools, facts) for call in turn.calls) if tools else ()
        phrasings = [text for phrasing in turn.say if (text := _filled_in(phrasing, facts)) is not None]
        return [Say(text, calls=calls) for text in phrasings or ([""] if calls else [])]

    def _turn(self, messages: Sequence[Json], *, has_tools: bool) -> Turn:
        """The turn it is; without tools an agent has nothing to do but to conclude."""
        number = len([message for message in messages if message.get("role") == "assistant"])
        if has_tools and self.repeat:
            return self.turns[number % len(self.turns)]
        is_over = not has_tools or number >= len(self.turns)
        return Turn(self.turns[-1].say, ()) if is_over else self.turns[number]


def load_scenario(name_or_file: str) -> Scenario:
    """A built-in scenario by its name, or one from a file; raises ValueError with what is wrong."""
    path = BUILT_IN / f"{name_or_file}.toml"
    if name_or_file not in scenario_names():
        path = Path(name_or_file)
        if not path.is_file():
            names = ", ".join(scenario_names())
            raise ValueError(f"scenario: no file {name_or_file!r}, and built in are {names}")
    try:
        return read_scenario(path.stem, tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"scenario {path}: {error}") from error


def scenario_names() -> list[str]:
    """The built-in scenarios."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


def read_scenario(name: str, written: Json) -> Scenario:
    """A scenario from its parsed file; raises ValueError naming the place."""
    _only(f"scenario {name}", written, {"turns", "repeat"})
    turns = written.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"scenario {name}: needs at least one [[turns]]")
    read = tuple(_read_turn(f"scenario {name}: turn {place}", turn) for place, turn in enumerate(turns))
    return Scenario(name, read, bool(written.get("repeat", False)))


def _read_turn(where: str, written: Any) -> Turn:
    _only(where, written, {"say", "calls"})
    say = written.get("say", [])
    say = [say] if isinstance(say, str) else say
    if not isinstance(say, list) or not all(isinstance(text, str) for text in say):
        raise ValueError(f"{where}: say must be a text or a list of texts")
    calls = written.get("calls", [])
    if not isinstance(calls, list):
        raise ValueError(f"{where}: calls must be a list of tables")  # noqa: TRY004  as above
    return Turn(tuple(say), tuple(_read_call(where, call) for call in calls))


def _read_call(where: str, written: Any) -> ToolCall:
    _only(f"{where}: calls", written, {"tool", "arguments"})
    arguments = written.get("arguments", {})
    sets = [arguments] if isinstance(arguments, dict) else arguments
    if not isinstance(sets, list) or not sets or not all(isinstance(one, dict) for one in sets):
        raise ValueError(f"{where}: arguments must be a table or a list of tables")
    return ToolCall(written.get("tool"), tuple(sets))


def _only(where: str, written: Any, known: set[str]) -> None:
    if not isinstance(written, dict):
        raise ValueError(f"{where}: must be a table")  # noqa: TRY004  a file is wrong in one way only
    if unknown := sorted(set(written) - known):
        raise ValueError(f"{where}: no such key: {', '.join(unknown)}")


def facts_of(messages: Sequence[Json]) -> Json:
    """What placeholders stand for: the task, the newest tool result, and the sum that the task asks for."""
    users = [_text(m) for m in messages if m.get("role") == "user"]
    results = [_text(m) for m in messages if m.get("role") == "tool"]
    found = next((hit for text in reversed(users) if (hit := SUM.search(text))), None)
    left, sign, right = found.groups() if found else ("6", "*", "7")
    sign = OPERATORS.get(sign, sign)
    facts: Json = {
        "task": users[0] if users else "",
        "expression": f"{left} {sign} {right}",
        "left": _number(left),
        "right": _number(right),
        "operator": sign,
        "operation": OPERATIONS[sign],
    }
    return facts | ({"result": results[-1][:LONGEST_RESULT].strip()} if results else {})


def _text(message: Json) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)


def _call(call: ToolCall, tools: Sequence[Json], facts: Mapping[str, Any]) -> ToolSay:
    """The call as the model prints it: of a tool that takes the arguments, else of one that needs more beside them.

    Where there is neither, the first tool gets those that it knows; what is missing is made up.
    """
    sets = [one for written in call.arguments if (one := _placed(written, facts)) is not None]
    named = [tool for tool in tools if call.tool in (None, _name(tool))]
    for arguments in sets:
        for tool in named:
            if takes(tool, arguments):
                return ToolSay(_name(tool), _dumped(arguments))
    if call.tool is not None and named and sets:
        return ToolSay(call.tool, _dumped(sets[0]))
    for arguments in filter(None, sets):
        for tool in named:
            if knows(tool, arguments):
                return ToolSay(_name(tool), _dumped(filled(tool, arguments)))
    tool = (named or tools)[0]
    given = {name: value for one in reversed(sets) for name, value in one.items()}
    return ToolSay(_name(tool), _dumped(filled(tool, given)))


def _dumped(arguments: Json) -> str:
    """As the chat template will print it again."""
    return json.dumps(arguments, ensure_ascii=False)


def _name(tool: Json) -> str:
    return str((tool.get("function") or {}).get("name"))


def _placed(value: Any, facts: Mapping[str, Any]) -> Any:
    """Arguments with their placeholders filled in, None if one is unknown; a placeholder alone keeps its type."""
    if isinstance(value, str):
        whole = PLACEHOLDER.fullmatch(value)
        return facts.get(whole[1]) if whole and whole[1] in PLACEHOLDERS else _filled_in(value, facts)
    if isinstance(value, dict):
        placed = {name: _placed(one, facts) for name, one in value.items()}
        return None if any(one is None for one in placed.values()) else placed
    if isinstance(value, list):
        return [_placed(one, facts) for one in value]
    return value


def _filled_in(text: str, facts: Mapping[str, Any]) -> str | None:
    """The text with its placeholders filled in; None if one has nothing to stand for."""
    names: Iterator[str] = (m[1] for m in PLACEHOLDER.finditer(text) if m[1] in PLACEHOLDERS)
    if any(name not in facts for name in names):
        return None
    return PLACEHOLDER.sub(lambda m: str(facts[m[1]]) if m[1] in PLACEHOLDERS else m[0], text)
