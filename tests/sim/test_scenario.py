"""Scripted agents work with whatever tools a harness has."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.sim.scenario import load_scenario, read_scenario, scenario_names
from proxy.sim.script import Say, ToolSay

Json = dict[str, Any]
TASK: Json = {"role": "user", "content": "What is 12 x 7.5?"}


def tool(name: str, **types: str) -> Json:
    schema = {"type": "object", "properties": {n: {"type": t} for n, t in types.items()}, "required": list(types)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


SEARCH = tool("search", query="string")
BY_TEXT = tool("calc", expression="string")
BY_PARTS = tool("sum", a="number", b="number", operator="string")
TWO_NUMBERS = tool("multiply", a="number", b="number")
SHELL = tool("bash", command="string")
SHELL_THAT_ASKS_WHY = tool("run", command="string", description="string")


def after(*results: str) -> list[Json]:
    """The conversation after so many calls with these results."""
    turns = [({"role": "assistant", "content": None}, {"role": "tool", "content": text}) for text in results]
    return [TASK, *(message for turn in turns for message in turn)]


def called(name: str, *tools: Json, **body: Any) -> ToolSay:
    """The one call that the scenario makes at its first turn."""
    (call,) = {say.calls for say in load_scenario(name).says({"messages": [TASK], "tools": list(tools), **body})}
    return call[0]


@pytest.mark.parametrize(
    ("tools", "name", "arguments"),
    [
        ([SEARCH, BY_TEXT, SHELL], "calc", {"expression": "12 * 7.5"}),
        ([SEARCH, BY_PARTS], "sum", {"a": 12, "b": 7.5, "operator": "*"}),
        ([TWO_NUMBERS], "multiply", {"a": 12, "b": 7.5}),
        ([SEARCH, SHELL], "bash", {"command": "echo $((12 * 7.5))"}),
        ([SEARCH], "search", {"query": "hello"}),
        ([SEARCH, SHELL_THAT_ASKS_WHY], "run", {"command": "echo $((12 * 7.5))", "description": "hello"}),
        ([SEARCH, SHELL_THAT_ASKS_WHY, SHELL], "bash", {"command": "echo $((12 * 7.5))"}),
        ([SEARCH, tool("exec", cmd="string")], "exec", {"cmd": "echo $((12 * 7.5))"}),
        ([SEARCH, tool("shell", command="array")], "shell", {"command": ["sh", "-c", "echo $((12 * 7.5))"]}),
    ],
)
def test_the_calculator_finds_a_tool_that_fits(tools: list[Json], name: str, arguments: Json) -> None:
    """By its schema, a shell too, however it is told; where none does, the first one gets made-up arguments."""
    call = called("calculator", *tools)

    assert (call.name, json.loads(call.arguments)) == (name, arguments)


def test_the_calculator_tells_the_result() -> None:
    """In one of several phrasings."""
    says = load_scenario("calculator").says({"messages": after("90"), "tools": [BY_TEXT]})

    assert len(says) > 4
    assert all(say.calls == () and "90" in say.text for say in says)


def test_any_tools_get_called_twice() -> None:
    """By the scenario `tools`, which then stops for good."""
    scenario, body = load_scenario("tools"), {"tools": [SHELL]}
    turns = [scenario.says({"messages": after(*["ok"] * n), **body}) for n in range(4)]

    assert [{len(say.calls) for say in says} for says in turns] == [{1}, {1}, {0}, {0}]
    assert turns[0][0].calls == (ToolSay("bash", '{"command": "echo hello"}'),)


def test_without_tools_only_the_conclusion_is_said() -> None:
    """And nothing at all where that needs a result."""
    assert load_scenario("tools").says({"messages": [TASK]})[0] == Say("Done.")
    assert load_scenario("tools").says({"messages": [TASK], "tools": [SHELL], "tool_choice": "none"})[0].calls == ()
    assert load_scenario("calculator").says({"messages": [TASK]}) == []


def test_a_file_names_tools_arguments_and_words(tmp_path: Path) -> None:
    """Several calls in a turn, arguments as written; after the last turn it begins anew where it says so."""
    file = tmp_path / "mine.toml"
    file.write_text(
        'repeat = true\n[[turns]]\nsay = "On it: {task}"\n'
        '[[turns.calls]]\ntool = "bash"\narguments = { command = "ls {unknown}", depth = 2 }\n'
        '[[turns.calls]]\ntool = "gone"\n'
        '[[turns]]\nsay = ["{result}!"]\n'
    )
    scenario, tools = load_scenario(str(file)), [SEARCH, SHELL]
    (first,) = scenario.says({"messages": [TASK], "tools": tools})
    (second,) = scenario.says({"messages": after("ok"), "tools": tools})

    assert first.text == "On it: What is 12 x 7.5?"
    assert [(c.name, json.loads(c.arguments)) for c in first.calls] == [
        ("bash", {"command": "ls {unknown}", "depth": 2}),
        ("search", {"query": "hello"}),
    ]
    assert second == Say("ok!")
    assert scenario.says({"messages": after("ok", "ok"), "tools": tools}) == [first]


def test_parts_of_a_message_are_read_as_text() -> None:
    """As some harnesses send them."""
    parts = [{"type": "text", "text": "what is"}, {"type": "text", "text": "3+4"}]
    body = {"messages": [{"role": "user", "content": parts}], "tools": [BY_TEXT]}

    assert json.loads(load_scenario("calculator").says(body)[0].calls[0].arguments) == {"expression": "3 + 4"}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({}, "needs at least one"),
        ({"turns": [], "x": 1}, "no such key: x"),
        ({"turns": [3]}, "turn 0: must be a table"),
        ({"turns": [{"say": 3}]}, "turn 0: say must be"),
        ({"turns": [{"calls": 3}]}, "turn 0: calls must be"),
        ({"turns": [{"calls": [{"arguments": 3}]}]}, "turn 0: arguments must be"),
        ({"turns": [{"calls": [{"name": "x"}]}]}, "turn 0: calls: no such key: name"),
    ],
)
def test_a_wrong_scenario_says_where(written: Json, words: str) -> None:
    """The turn and the key."""
    with pytest.raises(ValueError, match=words):
        read_scenario("mine", written)


def test_an_unknown_scenario_names_those_there_are(tmp_path: Path) -> None:
    """And a file that is no TOML is named."""
    (tmp_path / "bad.toml").write_text("turns = [")
    with pytest.raises(ValueError, match="built in are calculator, tools"):
        load_scenario("nothing")
    with pytest.raises(ValueError, match=r"bad\.toml"):
        load_scenario(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize("name", scenario_names())
def test_every_built_in_scenario_loads(name: str) -> None:
    """With a conclusion that calls nothing."""
    assert load_scenario(name).turns[-1].calls == ()
