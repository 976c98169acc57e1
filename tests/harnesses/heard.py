"""What the model was told in a request, without what differs between two runs of the same: ids, folders, times.

Two translations meet here: Rollpin's, where a harness asks through it, and the simulated engine's own.
"""

import json
import re
from collections.abc import Iterable
from itertools import groupby

from tests.harnesses.harness import Json

Heard = tuple[tuple[str, ...], ...]
"""Who spoke, and what of it is the same in every run; neighbours that say the same count once."""
FACTS = re.compile(r"\d+ note\.txt|turquoise-\d+")
"""What commands print about the note; harnesses put ids and times around it."""
CALL_IDS = re.compile(r"call_\w+")


def heard_in(messages: Iterable[Json]) -> Heard:
    """The conversation as the model heard it."""
    return tuple(told for told, _ in groupby(map(_told, messages)))


def text_of(message: Json) -> str:
    """All the text of a message."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(piece.get("text", "")) for piece in content if isinstance(piece, dict))
    return str(content or "")


def _told(message: Json) -> tuple[str, ...]:
    if message["role"] != "assistant":
        return (message["role"], *sorted(set(FACTS.findall(text_of(message)))))
    return ("assistant", CALL_IDS.sub("", text_of(message).strip()), *map(_called, message.get("tool_calls") or ()))


def _called(call: Json) -> str:
    function = call["function"]
    return f"{function['name']} {json.dumps(json.loads(function['arguments']), sort_keys=True)}"
