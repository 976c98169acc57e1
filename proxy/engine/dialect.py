"""What differs between engine kinds: how a plan is put, how a reply is read, how prompts are measured."""

import json
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

    def measure(self, ask: Ask, engine: EngineRef, tools: list[JsonObject]) -> EngineRequest:
        """The question how many tokens the prompt takes; the answer's `count` tells."""

    def read_tokens(self, event: JsonObject, choice: JsonObject) -> Arrived:
        """Ids and weight versions out of one event."""


def engine_model(plan: Plan) -> str:
    """The model name for the engine: the profile's or the engine's own, never the client's."""
    return plan.profile.model or plan.engine.facts.model


def common_body(plan: Plan, reasoning_key: str) -> JsonObject:
    """What every dialect sends: conversation, the complete pinned set, length, shape and seed."""
    ask = plan.ask
    body: JsonObject = {
        "model": engine_model(plan),
        "messages": engine_messages(ask, reasoning_key),
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


def engine_messages(ask: Ask, reasoning_key: str) -> list[JsonObject]:
    """The messages with known fields only, reasoning under the engine's own name."""
    return [_engine_message(message, reasoning_key) for message in ask.messages]


def _engine_message(message: JsonObject, reasoning_key: str) -> JsonObject:
    built = {name: message[name] for name in MESSAGE_FIELDS if message.get(name) is not None}
    built.setdefault("content", "" if message.get("role") != "assistant" else None)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        built[reasoning_key] = reasoning
    if calls := message.get("tool_calls"):
        built["tool_calls"] = [_engine_call(call) for call in calls]
    return built


def _engine_call(call: JsonObject) -> JsonObject:
    function = call.get("function") or {}
    return {
        "id": call.get("id"),
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
