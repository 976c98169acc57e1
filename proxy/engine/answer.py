"""What an engine's bodies say: the answer to a small question, and the error that stands in one."""

from dataclasses import dataclass
from typing import Any

from proxy.canonical import strict_json
from proxy.ids import are_ids
from proxy.model import JsonObject

LONGEST_EXCERPT = 300
LONGEST_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """A small reply, read whole: for questions about the engine itself."""

    status: int
    body: Any
    """Parsed JSON, or None where it was none."""
    text: str


def decoded_text(answer: Answer) -> str | None:
    """The text in an answer of /detokenize, under SGLang's name or vLLM's; None where there is none."""
    told = answer.body if answer.status == 200 and isinstance(answer.body, dict) else {}
    text = told.get("text", told.get("prompt"))
    return text if isinstance(text, str) else None


def rendered_ids(answer: Answer) -> tuple[int, ...] | None:
    """The ids in an answer of /tokenize; None where there are none."""
    told = answer.body.get("tokens") if answer.status == 200 and isinstance(answer.body, dict) else None
    return tuple(told) if told and are_ids(told) else None


def told_error(answer: Answer) -> str:
    """What an error answer says is wrong; its text where it is no error that is known."""
    error = error_object(answer.body)
    return message_of(error) if error is not None else answer.text


def error_object(body: Any) -> JsonObject | None:
    """The error in OpenAI's nested form, SGLang's flat one, or FastAPI's detail."""
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("error"), dict):
        return dict(body["error"])
    if body.get("error"):
        return {"message": body["error"]}
    if body.get("object") == "error":
        return body
    return {"message": body["detail"]} if "detail" in body else None


def message_of(error: JsonObject) -> str:
    return str(error.get("message") or error)[:LONGEST_MESSAGE]


def parsed(body: bytes) -> Any:
    """The JSON value, or None: also where a number is none that JSON knows, since no record could hold it."""
    try:
        return strict_json(body)
    except (ValueError, RecursionError):
        return None
