"""What differs between engine kinds: how a plan is put, how a reply is read, how prompts are measured."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from proxy.engine.fold import Arrived
from proxy.model import RENDERER_ARGUMENTS, Ask, EngineKind, EngineRef, EngineRequest, JsonObject, Plan

CHAT_PATH = "/v1/chat/completions"
MESSAGE_FIELDS = ("role", "content", "name", "tool_call_id")
# Conversation fields that go to an engine as the client wrote them; messages go through `engine_messages`.
PLAIN_FIELDS = (
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
    "continue_final_message",
    "documents",
)


class Dialect(Protocol):
    """One kind of engine."""

    kind: EngineKind
    shaping: frozenset[str]
    """Shaping fields that it acts on."""

    def encode(self, plan: Plan) -> EngineRequest:
        """The request for a plan: every field from the allow-list, the capture fields forced."""

    reasoning_key: str
    """Its name for an assistant message's reasoning."""
    developer_role: str
    """The role under which it is given messages of a developer."""

    def render(
        self, ask: Ask, engine: EngineRef, messages: Sequence[JsonObject], *, generation_prompt: bool = True
    ) -> EngineRequest:
        """The question which ids the template makes of messages in its own form, with the tools and template arguments
        of a request; `tokens` and `count` in the answer tell.
        """

    def decode(self, engine: EngineRef, ids: Sequence[int]) -> EngineRequest:
        """The question which text ids make, control tokens included; `text` or `prompt` in the answer tells."""

    def read_tokens(self, event: JsonObject, choice: JsonObject) -> Arrived:
        """Ids and weight versions out of one event."""


def engine_model(plan: Plan) -> str:
    """The model name for the engine: the profile's or the engine's own, never the client's."""
    return plan.profile.model or plan.engine.facts.model


def common_body(plan: Plan, dialect: Dialect) -> JsonObject:
    """What every dialect sends: conversation, the complete pinned set, length, shape and seed."""
    ask = plan.ask
    body: JsonObject = {
        "model": engine_model(plan),
        "messages": list(engine_messages(ask, dialect)),
        **plain_fields(ask),
        **plan.sampling.effective,
        **plan.sampling.length,
        **plan.sampling.shaping,
        "seed": plan.seed.value,
        "n": 1,
        "logprobs": True,
        "top_logprobs": ask.top_logprobs,
        "stream": ask.stream,
    }
    if tools := engine_tools(plan):
        body["tools"] = tools
        body.setdefault("tool_choice", tool_choice(ask))
    if ask.stream:
        body["stream_options"] = {"include_usage": True}
    return body


def plain_fields(ask: Ask) -> JsonObject:
    """Template arguments and the like, where the client set them; what is the renderer's stays out."""
    fields = {name: ask.chat[name] for name in PLAIN_FIELDS if ask.chat.get(name) is not None}
    if arguments := fields.get("chat_template_kwargs"):
        fields["chat_template_kwargs"] = {
            name: value for name, value in arguments.items() if name not in RENDERER_ARGUMENTS
        }
    return fields


def tool_choice(ask: Ask) -> str:
    """`none` where the client hides its tools from the model; forcing values travel with the shaping fields."""
    return "none" if ask.chat.get("tool_choice") == "none" else "auto"


def engine_tools(plan: Plan) -> list[JsonObject]:
    """The client's tools; `strict`, which makes engines constrain the output, only where it was passed."""
    tools = list(plan.ask.chat.get("tools") or [])
    if "tools.strict" not in plan.sampling.ignored:
        return tools
    return [_without_strict(tool) for tool in tools]


def render_body(ask: Ask, engine: EngineRef, messages: Sequence[JsonObject]) -> JsonObject:
    """What both engines' `/tokenize` want to know of a request."""
    kept = ("chat_template_kwargs", "continue_final_message")
    body: JsonObject = {"model": engine.facts.model, "messages": list(messages)}
    body |= {name: value for name, value in plain_fields(ask).items() if name in kept}
    if tools := ask.chat.get("tools"):
        body["tools"] = tools
    return body


def engine_messages(ask: Ask, dialect: Dialect) -> tuple[JsonObject, ...]:
    """The messages one for one, with known fields only: roles, reasoning and calls under the engine's own names."""
    return tuple(_engine_message(message, dialect, ask.engine_call_ids) for message in ask.messages)


def _engine_message(message: JsonObject, dialect: Dialect, call_ids: Mapping[str, str]) -> JsonObject:
    built = {name: message[name] for name in MESSAGE_FIELDS if message.get(name) is not None}
    built.setdefault("content", "" if message.get("role") != "assistant" else None)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        built[dialect.reasoning_key] = reasoning
    if built.get("role") == "developer":
        built["role"] = dialect.developer_role
    if isinstance(answered := built.get("tool_call_id"), str):
        built["tool_call_id"] = call_ids.get(answered, answered)
    if calls := message.get("tool_calls"):
        built["tool_calls"] = [_engine_call(call, call_ids) for call in calls]
    return built


def _engine_call(call: JsonObject, call_ids: Mapping[str, str]) -> JsonObject:
    function, call_id = call.get("function") or {}, call.get("id")
    return {
        "id": call_ids.get(call_id, call_id) if isinstance(call_id, str) else call_id,
        "type": "function",
        "function": {"name": function.get("name"), "arguments": renderable_arguments(function.get("arguments"))},
    }


def renderable_arguments(arguments: Any) -> str:
    """Arguments that every template can print: JSON objects as they are, anything else as `{}`.

    That is what vLLM does with arguments that do not parse; SGLang would answer 400. The prompt ids in the record show
    what the model was shown.
    """
    if isinstance(arguments, dict):
        return json.dumps(arguments)
    try:
        parsed = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return "{}"
    return str(arguments) if isinstance(parsed, dict) else "{}"


def _without_strict(tool: JsonObject) -> JsonObject:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    return {**tool, "function": {key: value for key, value in function.items() if key != "strict"}}
