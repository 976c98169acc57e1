"""Arguments for any harness's tools."""

from typing import Any

import pytest

from proxy.sim.schemas import filled, made_up, takes

Json = dict[str, Any]


def tool(*required: str, **properties: Any) -> Json:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": "t", "parameters": schema}}


TEXT, WHOLE, REAL = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BARE = {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("offered", "arguments", "fits"),
    [
        (tool("a", a=TEXT), {"a": "x"}, True),
        (tool("a", a=TEXT), {}, False),
        (tool("a", a=TEXT), {"a": 1}, False),
        (tool("a", a=TEXT), {"a": "x", "b": 1}, False),
        (tool(a=TEXT), {}, True),
        (tool("a", a=REAL), {"a": 1}, True),
        (tool("a", a=WHOLE), {"a": 1.5}, False),
        (tool("a", a=WHOLE), {"a": True}, False),
        (tool("a", a={"type": ["string", "null"]}), {"a": "x"}, True),
        (tool("a", a={"anyOf": [{"type": "null"}, TEXT]}), {"a": "x"}, True),
        (tool("a", a={"enum": ["add", "sub"]}), {"a": "add"}, True),
        (tool("a", a={"enum": ["add", "sub"]}), {"a": "div"}, False),
        (tool("a", a={}), {"a": [1]}, True),
        (BARE, {"whatever": 1}, True),
        ({"function": {"name": "t"}}, {"whatever": 1}, True),
        ({"function": {"name": "t", "parameters": {"additionalProperties": False}}}, {"a": 1}, False),
    ],
)
def test_a_tool_takes_what_its_schema_allows(offered: Json, arguments: Json, *, fits: bool) -> None:
    """All that it needs, and nothing else."""
    assert takes(offered, arguments) is fits


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": 3}, 3),
        ({"type": "string", "default": "d"}, "d"),
        ({"enum": ["red", "blue"]}, "red"),
        ({"type": "string", "examples": ["e"]}, "e"),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "integer", "exclusiveMinimum": 5}, 6),
        ({"type": "number", "maximum": 0.5}, 0.5),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": ["null", "integer"]}, 1),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"type": "array"}, ["hello"]),
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, {"n": 1}),
        ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"$ref": "#/$defs/Size"}, "small"),
        ({"$ref": "#/$defs/nowhere"}, "hello"),
        ({"type": "string", "minLength": 8}, "hello..."),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({}, "hello"),
        (True, "hello"),
    ],
)
def test_a_value_is_made_up_for_a_schema(schema: Any, value: Any) -> None:
    """The plainest that it allows."""
    assert made_up("name", schema, {"$defs": {"Size": {"enum": ["small", "big"]}}}) == value


def test_a_schema_that_holds_itself_comes_to_an_end() -> None:
    """A tree of trees."""
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "required": ["left"]}

    assert made_up("tree", tree, tree)


def test_only_what_is_needed_is_filled_in() -> None:
    """Given values stay where the tool takes them; names that act on the world get values that do no harm."""
    offered = tool("command", "n", command=TEXT, n=WHOLE, extra=TEXT)

    assert filled(offered, {"n": 3, "unknown": 1, "extra": 7}) == {"n": 3, "command": "echo hello"}
