"""A request in the fields of chat completions: what every client API's body is put into before anything is decided.

For chat itself that is the body; other APIs build it from theirs, and keep theirs beside it for the record.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.api.fields import check_fields
from proxy.api.media import check_media
from proxy.errors import BadAsk
from proxy.model import Api, Ask, Conversation, Identity, JsonObject
from proxy.request.conversation import read_conversation
from proxy.request.sampling import asked_max_tokens
from proxy.request.seed import read_client_seed
from proxy.request.volatile import settle_volatile
from proxy.settings import Settings

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
LEGACY_FIELDS = ("functions", "function_call")
# vLLM's default limit (--max-logprobs); OpenAI's too.
MOST_TOP_LOGPROBS = 20
MOST_CHOICES = 128


def ask_in_chat_form(
    identity: Identity, api: Api, body: JsonObject, chat: JsonObject, settings: Settings, left_out: Sequence[str] = ()
) -> Ask:
    """Check a request in chat form and take from it what the turn needs; raises BadAsk naming the chat field.

    `body` is what the client sent; `left_out` names what of it has no chat form and is not passed on.
    """
    _refuse_legacy("", chat)
    messages = _messages(chat.get("messages"))
    check_media(messages, settings.media_hosts)
    return ask_of(identity, api, body, chat, messages, left_out)


def ask_of(
    identity: Identity,
    api: Api,
    body: JsonObject,
    chat: JsonObject,
    messages: Sequence[JsonObject],
    left_out: Sequence[str] = (),
) -> Ask:
    """The same of messages that were checked; raises BadAsk naming the chat field."""
    check_fields(chat)
    asked_max_tokens(chat)
    read_client_seed(chat.get("seed"))
    stream = read_flag(chat, "stream")
    settled, volatile = settle_volatile(messages)
    wants_logprobs = read_flag(chat, "logprobs")
    return Ask(
        identity=identity,
        api=api,
        body=body,
        chat=chat,
        messages=settled,
        volatile=volatile,
        conversation=_conversation(settled, chat),
        stream=stream,
        choices=_choices(chat.get("n")),
        include_usage=_include_usage(chat.get("stream_options")) and stream,
        wants_logprobs=wants_logprobs,
        top_logprobs=_top_logprobs(chat.get("top_logprobs"), wanted=wants_logprobs),
        requested_model=read_text(chat, "model"),
        has_tools=bool(chat.get("tools")),
        left_out=tuple(left_out),
    )


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """A field that is true or false, and false where it is absent; raises BadAsk."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise BadAsk(f"{name} must be true or false, not {str(value)[:40]!r}", param=name)


def read_text(body: Mapping[str, Any], name: str) -> str | None:
    """A field that is text where it is there at all; raises BadAsk."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadAsk(f"{name} must be text", param=name)


def _conversation(messages: tuple[JsonObject, ...], body: JsonObject) -> Conversation:
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
    _refuse_legacy(f"{where}.", message)
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BadAsk(f"{where}.content must be text, a list of parts or null", param=f"{where}.content")
    if isinstance(content, list) and not all(map(_is_part, content)):
        raise BadAsk(f"{where}.content: every part must be an object with a type", param=f"{where}.content")
    for name in ("name", "tool_call_id"):
        if not isinstance(message.get(name), str | None):
            raise BadAsk(f"{where}.{name} must be text", param=f"{where}.{name}")
    _check_tool_calls(where, message.get("tool_calls"))


def _is_part(part: object) -> bool:
    """An object that says what it is; a text has its text."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return part["type"] != "text" or isinstance(part.get("text"), str)


def _refuse_legacy(where: str, holder: JsonObject) -> None:
    """Functions as they were before tools: engines drop them without a word, and a model would never see them."""
    for name in LEGACY_FIELDS:
        if holder.get(name) is not None:
            raise BadAsk(f"{where}{name} is not taken: use tools and tool_calls", param=f"{where}{name}")


def _check_tool_calls(where: str, calls: object) -> None:
    if calls is None:
        return
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadAsk(f"{where}.tool_calls must be a list of objects", param=f"{where}.tool_calls")
    for call in calls:
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadAsk(f"{where}.tool_calls: each needs a function with a name", param=f"{where}.tool_calls")


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


def _include_usage(options: JsonObject | None) -> bool:
    wanted = (options or {}).get("include_usage")
    if not isinstance(wanted, bool | None):
        raise BadAsk("stream_options.include_usage must be true or false", param="stream_options")
    return bool(wanted)
