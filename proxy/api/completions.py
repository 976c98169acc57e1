"""The completions API: one prompt, as text or token ids, and the text that follows it."""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from proxy.api.chat import STREAM_END, merged_usage
from proxy.api.chat_form import MOST_TOP_LOGPROBS, ask_of
from proxy.api.forms import openai_stream_error
from proxy.api.view import ClientApi
from proxy.errors import BadAsk, ProxyError
from proxy.model import Ask, Completion, Identity, JsonObject
from proxy.request.prompt import prompt_message, read_prompt
from proxy.running import Head
from proxy.settings import Settings

# OpenAI's own default for this API.
USUAL_MAX_TOKENS = 16
# What the engines could do, and a record could not tell apart from one reply to one prompt.
NOT_SERVED: dict[str, tuple[Any, ...]] = {"echo": (False,), "best_of": (1,), "suffix": ("",)}
CHAT_ALONE = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template_kwargs",
        "reasoning_effort",
        "continue_final_message",
        "documents",
        "max_completion_tokens",
        "top_logprobs",
    }
)


def read_ask(identity: Identity, body: JsonObject, settings: Settings) -> Ask:  # noqa: ARG001  as every API's reader
    """Check a client's body and put it into chat form; raises BadAsk naming the field."""
    prompt = read_prompt(body.get("prompt"))
    _check(body)
    top_logprobs = _logprobs(body.get("logprobs"))
    chat = {
        "max_tokens": USUAL_MAX_TOKENS,
        **{name: value for name, value in body.items() if value is not None and name not in {"prompt", *NOT_SERVED}},
        "logprobs": top_logprobs is not None,
        "top_logprobs": top_logprobs or 0,
    }
    return ask_of(identity, "completions", body, chat, (prompt_message(prompt),))


class CompletionsView:
    """One reply as one client sees it."""

    heartbeat = b": still working\n\n"

    def __init__(self, ask: Ask, head: Head, reasoning_field: str) -> None:  # noqa: ARG002  a prompt has no reasoning
        self._ask = ask
        self._lengths: dict[int, int] = {}
        """Characters of the tokens told so far, by choice: half a character is one by itself."""
        self._head = {
            "id": f"cmpl-{head.request_id}",
            "object": "text_completion",
            "created": int(head.created_at),
            "model": ask.requested_model or head.model,
        }

    def chunks(self, choice: int, event: JsonObject) -> Iterator[bytes]:
        """The client's event for one of the engine's, or none where it carried nothing for clients."""
        for said in event.get("choices") or ():
            text = (said.get("delta") or said.get("message") or {}).get("content") or ""
            entries = (said.get("logprobs") or {}).get("content") or ()
            if text or entries or said.get("finish_reason"):
                yield _event(
                    {**self._head, "choices": [self._choice(choice, text, entries, said.get("finish_reason"))]}
                )

    def stream_end(self, completions: Sequence[Completion]) -> bytes:
        """What closes a stream that came to its end."""
        if not self._ask.include_usage:
            return STREAM_END
        return _event({**self._head, "choices": [], "usage": merged_usage(completions)}) + STREAM_END

    def stream_error(self, error: ProxyError) -> bytes:
        """What closes a stream that did not."""
        return _event(openai_stream_error(error))

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The body of an unstreamed reply."""
        choices = [
            self._choice(index, one.message.get("content") or "", one.logprob_entries, one.finish_reason)
            for index, one in enumerate(completions)
        ]
        return json.dumps({**self._head, "choices": choices, "usage": merged_usage(completions)}).encode()

    def _choice(self, index: int, text: str, entries: Sequence[JsonObject], finish_reason: str | None) -> JsonObject:
        start = self._lengths.get(index, 0)
        self._lengths[index] = start + sum(len(entry["token"]) for entry in entries)
        logprobs = legacy_logprobs(entries, start, self._ask.top_logprobs) if self._ask.wants_logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


COMPLETIONS = ClientApi(read_ask, CompletionsView)


def legacy_logprobs(entries: Sequence[JsonObject], start: int, top: int) -> JsonObject:
    """Logprobs as lists side by side; offsets count characters from the beginning of the reply."""
    tokens = [entry["token"] for entry in entries]
    offsets = list(itertools.accumulate(map(len, tokens[:-1]), initial=start)) if tokens else []
    tops = [{one["token"]: one["logprob"] for one in entry.get("top_logprobs") or ()} for entry in entries]
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": tops if top else None,
        "text_offset": offsets,
    }


def _check(body: JsonObject) -> None:
    for name, harmless in NOT_SERVED.items():
        value = body.get(name)
        if value is not None and not any(
            value is one or (value == one and type(value) is type(one)) for one in harmless
        ):
            raise BadAsk(f"{name} is not served here: a record is one prompt and what was sampled after it", param=name)
    for name in body:
        if name in CHAT_ALONE and body[name] is not None:
            raise BadAsk(f"{name} is a field of chat completions, not of completions", param=name)


def _logprobs(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MOST_TOP_LOGPROBS:
        raise BadAsk(f"logprobs must be an integer from 0 to {MOST_TOP_LOGPROBS}", param="logprobs")
    return value


def _event(payload: JsonObject) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"
