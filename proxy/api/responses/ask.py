"""A body of the Responses API as a request in chat form."""

from functools import partial
from types import MappingProxyType
from typing import Any

from proxy.api.chat_form import ask_in_chat_form, read_flag, read_text
from proxy.api.responses.items import Messages
from proxy.api.responses.recall import Recalled, earlier_messages, recall, spelled_out
from proxy.api.responses.tools import Toolbox, read_choice, read_tools
from proxy.api.view import ReadAsk
from proxy.errors import BadAsk
from proxy.model import PINNED_FIELDS, Ask, Identity, JsonObject, RolloutId
from proxy.record.store import Store
from proxy.request.sampling import KNOWN_FIELDS, SHAPING_FIELDS
from proxy.settings import Settings

LOGPROBS = "message.output_text.logprobs"
# The API's own: read here, told back in the response, or without a meaning behind one engine.
OWN_FIELDS = frozenset(
    {
        "input",
        "instructions",
        "previous_response_id",
        "store",
        "include",
        "text",
        "reasoning",
        "tools",
        "tool_choice",
        "truncation",
        "metadata",
        "background",
        "stream",
        "stream_options",
        "model",
        "max_output_tokens",
        "max_tool_calls",
        "parallel_tool_calls",
        "top_logprobs",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "service_tier",
        "conversation",
        "prompt",
        "client_metadata",
    }
)
# Beyond the API, as engines understand them in chat.
PASSED_FIELDS = frozenset(
    {*PINNED_FIELDS, *SHAPING_FIELDS, "seed", "stop", "stop_token_ids", "chat_template_kwargs", "documents"}
) - {"response_format"}
TYPES: dict[str, tuple[type, str]] = {
    "instructions": (str, "text"),
    "include": (list, "a list of texts"),
    "text": (dict, "an object"),
    "reasoning": (dict, "an object"),
    "metadata": (dict, "an object"),
    "stream_options": (dict, "an object"),
    "user": (str, "text"),
    "safety_identifier": (str, "text"),
    "prompt_cache_key": (str, "text"),
    "service_tier": (str, "text"),
}
NOTHING: Recalled = MappingProxyType({})
# What would have to be there beyond a rollout: a job queue, a store of conversations, a store of prompts.
NOT_SERVED = ("conversation", "prompt")


async def reader_of(body: JsonObject, rollout_id: RolloutId, store: Store) -> ReadAsk:
    """What reads this body, once what it refers to was looked up."""
    return partial(read_ask, recalled=await recall(body, rollout_id, store))


def read_ask(identity: Identity, body: JsonObject, settings: Settings, recalled: Recalled = NOTHING) -> Ask:
    """Check a client's body and put it into chat form; raises BadAsk naming the field."""
    _check(body)
    tools = read_tools(body.get("tools"))
    format_, left_out = _text_format(body.get("text") or {})
    chat = {
        "model": body.get("model"),
        "messages": read_messages(body, tools, recalled),
        "tools": tools.chat() or None,
        "tool_choice": read_choice(body.get("tool_choice"), tools),
        "parallel_tool_calls": body.get("parallel_tool_calls"),
        "response_format": format_,
        "max_completion_tokens": _max_output_tokens(body.get("max_output_tokens")),
        "reasoning_effort": _effort(body.get("reasoning") or {}),
        "stream": body.get("stream"),
        "logprobs": wants_logprobs(body),
        "top_logprobs": body.get("top_logprobs"),
        **{name: value for name, value in body.items() if name not in OWN_FIELDS},
    }
    told = {name: value for name, value in chat.items() if value is not None}
    return ask_in_chat_form(identity, "responses", body, told, settings, (*tools.left_out, *left_out))


def read_messages(body: JsonObject, tools: Toolbox, recalled: Recalled) -> list[JsonObject]:
    """The whole conversation: instructions, what came before, and the new items."""
    messages = Messages(tools)
    given = body.get("input")
    if isinstance(given, str):
        messages.told.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for index, item in enumerate(spelled_out(given, recalled)):
            messages.add(f"input[{index}]", item)
    else:
        raise BadAsk("input must be text or a list of items", param="input")
    instructions = body.get("instructions")
    opening = [{"role": "system", "content": instructions}] if instructions else []
    whole = [*opening, *earlier_messages(body, recalled), *messages.told]
    if not whole:
        raise BadAsk("input holds nothing to answer", param="input")
    return whole


def wants_logprobs(body: JsonObject) -> bool:
    """Asked for by name, or by how many alternatives there should be."""
    return LOGPROBS in (body.get("include") or ()) or bool(body.get("top_logprobs"))


def _check(body: JsonObject) -> None:
    for name in NOT_SERVED:
        if body.get(name) is not None:
            raise BadAsk(f"{name} is not served here: send the whole of it as input", param=name)
    if read_flag(body, "background"):
        raise BadAsk("background responses are not served here: read the reply as it comes", param="background")
    for name, (kind, told) in TYPES.items():
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise BadAsk(f"{name} must be {told}", param=name)
    if not all(isinstance(name, str) for name in body.get("include") or ()):
        raise BadAsk("include must be a list of texts", param="include")
    if body.get("truncation") not in (None, "auto", "disabled"):
        raise BadAsk("truncation must be auto or disabled", param="truncation")
    read_flag(body, "store")
    read_text(body, "model")
    for name in body:
        if name in KNOWN_FIELDS - OWN_FIELDS - PASSED_FIELDS and body[name] is not None:
            raise BadAsk(f"{name} is a field of chat completions, not of responses", param=name)


def _max_output_tokens(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise BadAsk("max_output_tokens must be an integer from 1", param="max_output_tokens")
    return value


def _effort(reasoning: JsonObject) -> str | None:
    effort = reasoning.get("effort")
    if not isinstance(effort, str | None):
        raise BadAsk("reasoning.effort must be text", param="reasoning.effort")
    return effort


def _text_format(text: JsonObject) -> tuple[JsonObject | None, tuple[str, ...]]:
    """`text.format` as a response_format, and what else the field asks for."""
    left_out = tuple(f"text.{name}" for name in sorted(text) if name != "format" and text[name] is not None)
    wanted = text.get("format")
    match wanted:
        case None | {"type": "text"}:
            return None, left_out
        case {"type": "json_object"}:
            return {"type": "json_object"}, left_out
        case {"type": "json_schema", "name": str(), "schema": dict()}:
            named = {name: wanted[name] for name in ("name", "description", "schema", "strict") if name in wanted}
            return {"type": "json_schema", "json_schema": named}, left_out
    raise BadAsk("text.format must be text, json_object, or a json_schema with name and schema", param="text.format")
