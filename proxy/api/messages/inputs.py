"""Arguments of a tool call, which chat has as text and Messages as an object.

Where the model wrote something that is no object, the text goes to the client in the wrapper that Claude Code itself
puts around such text, and comes back out of it: no client has to parse what cannot be parsed, and nothing is lost.
"""

import json

from proxy.body import is_deeper
from proxy.canonical import strict_json
from proxy.model import JsonObject

UNPARSED = "__unparsedToolInput"
# Far below what the parsers of clients bear, and what this proxy takes back.
DEEPEST_INPUT = 64


def tool_input(arguments: str) -> JsonObject:
    """The object that the arguments spell, or the wrapper around them."""
    if not arguments.strip():
        return {}
    try:
        value = strict_json(arguments)
        # Lone surrogates: JSON has an escape for them, and most parsers refuse it.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return _wrapped(arguments)
    return value if isinstance(value, dict) and not is_deeper(value, DEEPEST_INPUT) else _wrapped(arguments)


def input_text(arguments: str) -> str:
    """The same as JSON text: as the model wrote it, where that is an object."""
    value = tool_input(arguments)
    return arguments if value and UNPARSED not in value else json.dumps(value)


def written_arguments(value: JsonObject) -> str:
    """The arguments that an echoed input stands for."""
    wrapped = value.get(UNPARSED) if len(value) == 1 else None
    if isinstance(wrapped, dict) and isinstance(wrapped.get("raw"), str):
        return str(wrapped["raw"])
    return json.dumps(value)


def _wrapped(arguments: str) -> JsonObject:
    return {UNPARSED: {"raw": arguments, "len": len(arguments)}}
