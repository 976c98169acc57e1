"""A Messages body in chat form: fields by their other names, tools and tool choice, and what is left out."""

from collections.abc import Iterator
from typing import Any

from proxy.api.chat_form import ask_in_chat_form, read_flag
from proxy.api.messages.blocks import Talk
from proxy.api.messages.tools import read_tool_choice, read_tools
from proxy.errors import BadAsk
from proxy.model import PINNED_FIELDS, Ask, Identity, JsonObject
from proxy.request.sampling import read_stops
from proxy.settings import Settings

# Fields that chat calls the same. Anthropic knows no seed and fewer sampling values; a client that sends them is heard.
SAME_NAME = ("model", "stream", "max_tokens", "seed", *PINNED_FIELDS)
READ_HERE = frozenset(
    {*SAME_NAME, "messages", "system", "tools", "tool_choice", "stop_sequences", "output_config", "output_format"}
)


def read_ask(identity: Identity, body: JsonObject, settings: Settings) -> Ask:
    """Check a body and put it into chat form; raises BadAsk naming the field."""
    if body.get("max_tokens") is None:
        raise BadAsk("max_tokens is required", param="max_tokens")
    return read_prompt(identity, body, settings)


def read_prompt(identity: Identity, body: JsonObject, settings: Settings) -> Ask:
    """The same for a body that need not say how long the reply may be, as where tokens are only counted."""
    talk = Talk(settings.media_hosts, later_system=settings.later_system)
    tools, notes = read_tools(body.get("tools"))
    chat: JsonObject = {name: body[name] for name in SAME_NAME if name in body}
    chat["messages"] = talk.read(body.get("system"), body.get("messages"))
    if tools:
        chat["tools"] = tools
    chat |= read_tool_choice(body.get("tool_choice"), tools)
    chat |= _stop(body.get("stop_sequences"))
    chat |= _output_format(body)
    if _is_begun(chat["messages"][-1]):
        chat["continue_final_message"] = True
    read_flag(body, "stream")
    left_out = sorted({*_unread(body), *notes, *talk.notes})
    return ask_in_chat_form(identity, "messages", body, chat, settings, left_out)


def _unread(body: JsonObject) -> Iterator[str]:
    """Fields that no engine has an equal for: thinking budgets, cache marks, context management, metadata."""
    yield from (name for name, value in body.items() if name not in READ_HERE and value is not None)
    config = body.get("output_config")
    if isinstance(config, dict):
        yield from (f"output_config.{name}" for name in config if name != "format" and config[name] is not None)


def _stop(sequences: Any) -> JsonObject:
    if sequences is None:
        return {}
    if not isinstance(sequences, list):
        raise BadAsk("stop_sequences must be a list of non-empty texts", param="stop_sequences")
    return {"stop": read_stops("stop_sequences", sequences)} if sequences else {}


def _output_format(body: JsonObject) -> JsonObject:
    """A JSON schema for the reply, under its present name or the one it had before."""
    config = body.get("output_config")
    if config is not None and not isinstance(config, dict):
        raise BadAsk("output_config must be an object", param="output_config")
    wanted = (config or {}).get("format") or body.get("output_format")
    if wanted is None:
        return {}
    schema = wanted.get("schema") if isinstance(wanted, dict) and wanted.get("type") == "json_schema" else None
    if not isinstance(schema, dict):
        raise BadAsk("output_config.format must be a json_schema with a schema", param="output_config.format")
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}}


def _is_begun(last: JsonObject) -> bool:
    """Whether the client has written the beginning of the reply; a turn of calls is none."""
    return last["role"] == "assistant" and bool(last["content"]) and not last.get("tool_calls")
