"""Which of a harness's tools takes some arguments, and arguments made up for a tool by its schema."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.sim.template import Json

JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
# Values for texts of these names that do no harm wherever a harness really acts on them.
HARMLESS: Mapping[str, str] = {
    "command": "echo hello",
    "cmd": "echo hello",
    "code": "print('hello')",
    "expression": "6 * 7",
    "path": "README.md",
    "file_path": "README.md",
    "filename": "README.md",
    "url": "http://127.0.0.1/",
    "date": "2026-01-01",
    "email": "nobody@example.com",
}
DEEPEST = 6


def parameters(tool: Json) -> Json:
    """The schema of a tool's arguments."""
    schema = (tool.get("function") or {}).get("parameters")
    return schema if isinstance(schema, dict) else {}


def takes(tool: Json, arguments: Json) -> bool:
    """All that the tool needs is there, and nothing it doesn't know or of another type."""
    return set(parameters(tool).get("required") or ()) <= set(arguments) and knows(tool, arguments)


def knows(tool: Json, arguments: Json) -> bool:
    """Nothing is there that the tool doesn't know or of another type; it may need more."""
    schema = parameters(tool)
    known = schema.get("properties") or {}
    is_open = not known and schema.get("additionalProperties") is not False
    return all(
        is_open or (name in known and _is_of(_resolved(known[name], schema), value))
        for name, value in arguments.items()
    )


def filled(tool: Json, given: Json) -> Json:
    """Arguments for a tool: the given ones that it takes, and made-up values for the others that it needs."""
    schema = parameters(tool)
    known = schema.get("properties") or {}
    kept = {n: v for n, v in given.items() if n in known and _is_of(_resolved(known[n], schema), v)}
    needed = [name for name in schema.get("required") or () if name not in kept]
    return kept | {name: made_up(name, known.get(name) or {}, schema) for name in needed}


def made_up(name: str, schema: Any, root: Json, depth: int = 0) -> Any:
    """A value that a schema allows."""
    schema = _resolved(schema, root)
    for told in ("const", "default"):
        if told in schema:
            return schema[told]
    for listed in ("enum", "examples"):
        if schema.get(listed):
            return schema[listed][0]
    match _type(schema):
        case "object":
            return _object(schema, root, depth)
        case "array":
            wanted = max(1, int(schema.get("minItems") or 0)) if depth < DEEPEST else 0
            return [made_up(name, schema.get("items") or {}, root, depth + 1) for _ in range(wanted)]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
    return _text(name, schema)


def _object(schema: Json, root: Json, depth: int) -> Json:
    known = schema.get("properties") or {}
    needed = schema.get("required") or () if depth < DEEPEST else ()
    return {name: made_up(name, known.get(name) or {}, root, depth + 1) for name in needed}


def _number(schema: Json) -> int | float:
    low, high = schema.get("minimum"), schema.get("maximum")
    if schema.get("exclusiveMinimum") is not None:
        low = schema["exclusiveMinimum"] + 1
    value = 1 if low is None else low
    return value if high is None else min(value, high)


def _text(name: str, schema: Json) -> str:
    formatted = {"date": "2026-01-01", "date-time": "2026-01-01T00:00:00Z", "uri": "http://127.0.0.1/"}
    text = formatted.get(str(schema.get("format"))) or HARMLESS.get(name) or "hello"
    short, long = int(schema.get("minLength") or 0), schema.get("maxLength")
    return text.ljust(short, ".")[: None if long is None else int(long)]


def _type(schema: Json) -> str:
    """The one type to make up: the first that is not null; an object where properties say so, else a text."""
    told = schema.get("type")
    types: Sequence[str] = [told] if isinstance(told, str) else told or ()
    if not types:
        return "object" if "properties" in schema else "string"
    return next((kind for kind in types if kind != "null"), "null")


def _resolved(schema: Any, root: Json) -> Json:
    """The schema itself, behind references and alternatives: of several the first that is not null."""
    for _ in range(DEEPEST):
        if not isinstance(schema, dict):
            return {}
        options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if reference := schema.get("$ref"):
            schema = _referred(str(reference), root)
        elif options:
            schema = next((o for o in options if isinstance(o, dict) and o.get("type") != "null"), {})
        else:
            return schema
    return {}


def _referred(reference: str, root: Json) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _is_of(schema: Json, value: Any) -> bool:
    """The value is of a type that the schema names, and among its listed values."""
    told = schema.get("type")
    types = [told] if isinstance(told, str) else told or list(JSON_TYPES)
    is_typed = any(isinstance(value, JSON_TYPES.get(kind, ())) for kind in types)
    is_wrong_bool = isinstance(value, bool) and "boolean" not in types
    return is_typed and not is_wrong_bool and ("enum" not in schema or value in schema["enum"])
