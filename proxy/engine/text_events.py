"""Events of plain completions in the form of chat, so that fold, views and records know no other.

Seen on vLLM 0.32.0 and SGLang 0.5.23, which speak alike here: prompt ids in the choice of the first event, sampled ids
and logprobs in each.
"""

from collections.abc import Iterator
from typing import Any

from proxy.model import JsonObject

TEXT_COMPLETION = "text_completion"


def in_chat_form(event: JsonObject) -> JsonObject:
    """An event of a completion as one of chat; others as they are. Raises what lookups do where it is broken."""
    if event.get("object") != TEXT_COMPLETION:
        return event
    return {**event, "choices": [_choice(choice) for choice in event["choices"]]}


def _choice(choice: JsonObject) -> JsonObject:
    said = {name: value for name, value in choice.items() if name not in {"text", "logprobs"}}
    logprobs = choice.get("logprobs")
    entries = list(_entries(logprobs)) if logprobs is not None else None
    return {**said, "delta": {"content": choice["text"]}, "logprobs": {"content": entries}}


def _entries(logprobs: JsonObject) -> Iterator[JsonObject]:
    """Chat's logprob objects out of lists side by side."""
    tokens, values = logprobs["tokens"], logprobs["token_logprobs"]
    tops: list[Any] = logprobs.get("top_logprobs") or [None] * len(tokens)
    for token, value, top in zip(tokens, values, tops, strict=True):
        others = [{"token": other, "logprob": logprob} for other, logprob in (top or {}).items()]
        yield {"token": token, "logprob": value, "top_logprobs": others}
