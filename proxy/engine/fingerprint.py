"""One value for what an engine makes of a conversation: its kind, its model's name, its tokenizer and its template.

Calls may move between engines only where this is equal, since token ids mean the same only there. Weights do not show
in it: that two engines serve the same ones is the operator's word. Nor does the day, which many templates print in
front of a conversation: an engine is the same one past midnight.
"""

from collections.abc import Sequence
from datetime import date

from proxy.canonical import digest
from proxy.engine.dates import without_dates
from proxy.model import EngineKind, JsonObject

MARK = "rollpin-engine-1"
TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["word"],
        },
    },
}
CALL: JsonObject = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"word": "naïve", "limit": 1e3}'},
}
SYSTEM: JsonObject = {"role": "system", "content": "Answer briefly."}
OPENING = "Größe"
# Scripts, digits, blanks and joined symbols: what tokenizers cut differently.
QUESTION: JsonObject = {
    "role": "user",
    "content": f"{OPENING} 1234567890?  \n\n\tdef f(x): return x**2 # 漢字, кот, 👩‍🚀",
}
ANSWER: JsonObject = {"role": "assistant", "content": "It is 42.", "reasoning": "so", "reasoning_content": "so"}
# Each shows the engine another part of its template; one that a template refuses tells of it too.
BATTERY: tuple[JsonObject, ...] = (
    {"messages": [QUESTION]},
    {"messages": [SYSTEM, QUESTION, ANSWER, QUESTION]},
    {
        "messages": [
            QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"found": true}'},
        ],
        "tools": [TOOL],
    },
)


def fingerprint(kind: EngineKind, model: str, renders: Sequence[Sequence[int] | None]) -> str:
    """The digest; `renders` are the ids of the battery's conversations, None where the template refused."""
    return digest([MARK, kind, model, [list(ids) if ids is not None else None for ids in renders]])


def undated(render: str, today: date) -> str:
    """A rendered conversation of the battery without the dates of today before the user's first word.

    Such a date stands in the history of every later turn, whose ids are recorded. One behind it would stand in the tail
    of a later turn too: there another day is another prompt, and so another fingerprint.
    """
    head, opening, rest = render.partition(OPENING)
    return without_dates(head, today) + opening + rest if opening else render
