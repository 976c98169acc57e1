"""Chat completions as harnesses speak them: a body becomes an Ask, a reply becomes the body or events they expect.

What a client gets is built anew from known fields: no token ids, no logprobs unless it asked, the model name it asked
for, reasoning under one name.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from proxy.api.fields import check_fields
from proxy.echo import tool_call_id
from proxy.errors import BadAsk, ProxyError, openai_error
from proxy.model import Ask, Completion, Identity, JsonObject
from proxy.request.conversation import read_conversation
from proxy.request.sampling import asked_max_tokens
from proxy.request.seed import read_client_seed
from proxy.request.volatile import settle_volatile
from proxy.running import Head
from proxy.settings import Settings

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
# vLLM's default limit (--max-logprobs); OpenAI's too.
MOST_TOP_LOGPROBS = 20
MOST_CHOICES = 128
USAGE_FIELDS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
)
STREAM_END = b"data: [DONE]\n\n"
PROSE = frozenset({"text", "content", "title", "arguments"})
HAS_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:[^\s]")


def read_ask(identity: Identity, body: JsonObject, settings: Settings) -> Ask:
    """Check a client's body and take from it what the turn needs; raises BadAsk naming the field."""
    messages = _messages(body.get("messages"))
    _check_media(messages, settings.media_hosts)
    check_fields(body)
    asked_max_tokens(body)
    read_client_seed(body.get("seed"))
    stream = _flag(body, "stream")
    settled, volatile = settle_volatile(messages)
    wants_logprobs = _flag(body, "logprobs")
    return Ask(
        identity=identity,
        api="chat",
        body=body,
        chat=body,
        messages=settled,
        volatile=volatile,
        conversation=_conversation(settled, body),
        stream=stream,
        choices=_choices(body.get("n")),
        include_usage=stream and _include_usage(body.get("stream_options")),
        wants_logprobs=wants_logprobs,
        top_logprobs=_top_logprobs(body.get("top_logprobs"), wanted=wants_logprobs),
        requested_model=_text(body, "model"),
        has_tools=bool(_tools(body)),
    )


class ChatView:
    """One reply as one client sees it."""

    heartbeat = b": still working\n\n"

    def __init__(self, ask: Ask, head: Head, reasoning_field: str) -> None:
        self._ask = ask
        self._plans = head.plans
        self._reasoning_field = reasoning_field
        self._numbers: dict[tuple[int, int], int] = {}
        """Tool calls of a choice by order of appearance, which the record counts by too."""
        self._head = {
            "id": f"chatcmpl-{head.request_id}",
            "created": int(head.created_at),
            "model": ask.requested_model or head.model,
        }

    def chunks(self, choice: int, event: JsonObject) -> Iterator[bytes]:
        """The client's events for one of the engine's: one, or none where it carried nothing for clients."""
        for said in event.get("choices") or ():
            shown = self._choice(choice, said)
            if shown["delta"] or shown["finish_reason"] or shown.get("logprobs"):
                yield self._chunk(choices=[shown])

    def stream_end(self, completions: Sequence[Completion]) -> bytes:
        """What closes a stream that came to its end."""
        if not self._ask.include_usage:
            return STREAM_END
        return self._chunk(choices=[], usage=merged_usage(completions)) + STREAM_END

    def stream_error(self, error: ProxyError) -> bytes:
        """What closes a stream that did not."""
        return _event(openai_error(error))

    def error(self, error: ProxyError) -> JsonObject:
        """The body that tells of an error before anything was sent."""
        return openai_error(error)

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The body of an unstreamed reply."""
        choices = [
            {
                "index": index,
                "message": completion.message,
                "logprobs": self._whole_logprobs(completion),
                "finish_reason": completion.finish_reason,
            }
            for index, completion in enumerate(completions)
        ]
        body = {**self._head, "object": "chat.completion", "choices": choices, "usage": merged_usage(completions)}
        return json.dumps(body).encode()

    def _choice(self, index: int, said: JsonObject) -> JsonObject:
        shown: JsonObject = {
            "index": index,
            "delta": dict(self._delta(index, said.get("delta") or said.get("message") or {})),
            "finish_reason": said.get("finish_reason"),
        }
        if self._ask.wants_logprobs and said.get("logprobs"):
            shown["logprobs"] = {"content": said["logprobs"].get("content"), "refusal": None}
        return shown

    def _delta(self, choice: int, said: JsonObject) -> Iterator[tuple[str, Any]]:
        """A delta, or a whole message as one."""
        for name in ("role", "content", "refusal"):
            if said.get(name) is not None:
                yield name, said[name]
        reasoning = said.get("reasoning") or said.get("reasoning_content") or said.get(self._reasoning_field)
        if reasoning:
            yield self._reasoning_field, reasoning
        if pieces := said.get("tool_calls"):
            yield "tool_calls", [self._piece(choice, position, piece) for position, piece in enumerate(pieces)]

    def _piece(self, choice: int, position: int, piece: JsonObject) -> JsonObject:
        """One piece of a tool call, under the id that this proxy gives it."""
        index = self._number(choice, piece.get("index"), position)
        shown: JsonObject = {"index": index}
        if piece.get("id"):
            shown |= {"id": self._call_id(choice, index, piece["id"]), "type": "function"}
        if function := piece.get("function"):
            shown["function"] = {
                name: function[name] for name in ("name", "arguments") if function.get(name) is not None
            }
        return shown

    def _number(self, choice: int, index: object, position: int) -> int:
        key = (choice, index if isinstance(index, int) else position)
        known = sum(1 for seen, _index in self._numbers if seen == choice)
        return self._numbers.setdefault(key, known)

    def _call_id(self, choice: int, index: int, said: str) -> str:
        """A recorded message has the derived id already."""
        return tool_call_id(self._plans[choice], index) if self._plans else said

    def _whole_logprobs(self, completion: Completion) -> JsonObject | None:
        if not self._ask.wants_logprobs:
            return None
        return {"content": list(completion.logprob_entries), "refusal": None}

    def _chunk(self, **fields: Any) -> bytes:
        return _event({**self._head, "object": "chat.completion.chunk", **fields})


def merged_usage(completions: Sequence[Completion]) -> JsonObject:
    """Usage over all choices: the prompt counts once, the replies add up."""
    usages = [completion.usage or {} for completion in completions]
    if len(usages) == 1:
        return {name: usages[0][name] for name in USAGE_FIELDS if usages[0].get(name) is not None}
    prompt = usages[0].get("prompt_tokens", 0)
    sampled = sum(usage.get("completion_tokens", 0) for usage in usages)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _event(payload: JsonObject) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def _conversation(messages: tuple[JsonObject, ...], body: JsonObject) -> Any:
    try:
        return read_conversation(messages, body)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadAsk(
            f"messages or tools hold something that JSON has no form for: {error}", param="messages"
        ) from error


def _messages(value: object) -> list[JsonObject]:
    if value is None:
        raise BadAsk("messages is required", param="messages")
    if not isinstance(value, list) or not value:
        raise BadAsk("messages must be a list of at least one message", param="messages")
    for index, message in enumerate(value):
        _check_message(index, message)
    return value


def _check_message(index: int, message: object) -> None:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise BadAsk(f"{where} must be an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadAsk(f"{where}.role must be one of {', '.join(sorted(ROLES))}", param=f"{where}.role")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BadAsk(f"{where}.content must be text, a list of parts or null", param=f"{where}.content")
    if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
        raise BadAsk(f"{where}.content: every part must be an object", param=f"{where}.content")
    _check_tool_calls(where, message.get("tool_calls"))


def _check_tool_calls(where: str, calls: object) -> None:
    if calls is None:
        return
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadAsk(f"{where}.tool_calls must be a list of objects", param=f"{where}.tool_calls")
    for call in calls:
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadAsk(f"{where}.tool_calls: each needs a function with a name", param=f"{where}.tool_calls")


def _check_media(messages: list[JsonObject], allowed_hosts: tuple[str, ...]) -> None:
    """Refuse media that the engine would fetch from elsewhere, and parts that stand for tensors."""
    for index, message in enumerate(messages):
        for part in _parts(message.get("content")):
            if str(part.get("type")).endswith("_embeds"):
                raise _media_refused(index, f"{part['type']} parts are not passed on")
            for url in _media_urls(part):
                if not may_fetch(url, allowed_hosts):
                    raise _media_refused(index, f"media must come as data: URLs, not from {url[:80]!r}")


def may_fetch(url: str, allowed_hosts: tuple[str, ...]) -> bool:
    """Whether an engine may be given this URL: data: always, http(s) from an allowed host told in a plain way."""
    if url.startswith("data:"):
        return True
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and parts.netloc in allowed_hosts and "\\" not in url


def _media_refused(index: int, why: str) -> BadAsk:
    return BadAsk(f"messages[{index}]: {why}", code="media_url_refused", param=f"messages[{index}].content")


def _parts(value: object) -> Iterator[JsonObject]:
    """Every object inside a list of content parts, however deep."""
    if isinstance(value, list):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _parts(item)


def _media_urls(part: JsonObject) -> Iterator[str]:
    """Texts of a part that an engine could take for an address: in URL fields, and anything with a scheme elsewhere."""
    for name, value in part.items():
        if name.endswith("_url"):
            yield str(value.get("url")) if isinstance(value, dict) else str(value)
        elif isinstance(value, str) and name not in PROSE and HAS_SCHEME.match(value):
            yield value


def _choices(n: object) -> int:
    if n is None:
        return 1
    if type(n) is not int or not 1 <= n <= MOST_CHOICES:
        raise BadAsk(f"n must be an integer from 1 to {MOST_CHOICES}", param="n")
    return n


def _top_logprobs(value: object, *, wanted: bool) -> int:
    if value is None or not wanted:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOP_LOGPROBS:
        raise BadAsk(f"top_logprobs must be an integer from 0 to {MOST_TOP_LOGPROBS}", param="top_logprobs")
    return value


def _tools(body: JsonObject) -> list[Any]:
    tools = body.get("tools")
    if tools is None:
        return []
    return list(tools)


def _include_usage(options: JsonObject | None) -> bool:
    if options is None:
        return False
    return bool(options.get("include_usage"))


def _flag(body: JsonObject, name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise BadAsk(f"{name} must be true or false, not {str(value)[:40]!r}", param=name)


def _text(body: JsonObject, name: str) -> str | None:
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadAsk(f"{name} must be text", param=name)
