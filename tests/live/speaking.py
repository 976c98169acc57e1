"""What brings the tiny model, whose weights are random, to say something: which tokens, which tool, which patterns."""

from typing import Any

Json = dict[str, Any]

# Its tokens that end a turn and a thought; all nine that are no plain text.
FIRST_END, SECOND_END, THINK_END = "1017", "1015", "1019"
MARKUP = tuple(str(token) for token in range(1015, 1024))
NO_END = {"logit_bias": {FIRST_END: -100, SECOND_END: -100}}
NO_MARKUP = {"logit_bias": dict.fromkeys(MARKUP, -100)}
# Its two tokens that are an "é" together, one byte each, and nothing but them.
HALVES = {127: b"\xc3", 102: b"\xa9"}
ONLY_HALVES = {"logit_bias": {str(token): 100 for token in HALVES}}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
ADD_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
# It calls a tool only when every token is steered: the two markers and a call between them.
ONE_CALL = r'hi <tool_call>\n\{"name": "add", "arguments": \{"a": [0-9]{1,3}, "b": [0-9]{1,3}\}\}\n</tool_call>'
TWO_CALLS = (
    r'<tool_call>\n\{ "name": "add", "arguments": \{"b": [0-9]{1,3},"a": [0-9]{1,2}\.0\}\}\n</tool_call>\n'
    r'<tool_call>\n\{"name": "add", "arguments": \{"a":  [0-9]{1,3}\}\}\n</tool_call>'
)
WORDS = r" [a-z]{3,8} [a-z]{3,8}\. "


def steered(kind: str, pattern: str) -> Json:
    """Fields that hold a reply to a pattern, in the engine's own words."""
    return {"structured_outputs": {"regex": pattern}} if kind == "vllm" else {"regex": pattern}


def forced_call(kind: str) -> Json:
    """Fields that make the model call the tool at once."""
    return {"tools": [ADD_TOOL], "max_tokens": 150, **steered(kind, ONE_CALL), **NO_THINKING}


def shaped(kind: str, pattern: str | None, *, thinks: bool) -> Json:
    """Fields that make the model speak in a shape, behind a thought or not; without a pattern it babbles a little."""
    how: Json = {"tools": [ADD_TOOL]} | ({} if thinks else NO_THINKING)
    if pattern is None:
        return how | {"max_tokens": 12}
    # Thoughts end soon, and only by their own mark; what ends a turn is the first end token.
    bias = {SECOND_END: -100} | ({THINK_END: 6} if thinks else {})
    return how | {"max_tokens": 190, "logit_bias": bias, **steered(kind, pattern)}
