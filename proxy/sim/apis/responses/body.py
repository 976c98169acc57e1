"""A Responses body as a chat body: the items of one reply become one assistant message."""

from typing import Any

from proxy.sim.apis.api import passed, text, texts, unreadable
from proxy.sim.apis.responses.sealed import unseal
from proxy.sim.apis.responses.tools import chat_name, choice_in_chat, tools_of, wrapped
from proxy.sim.ask import Refusal
from proxy.sim.template import Json

PASSED = (
    *("model", "stream", "stop", "chat_template_kwargs", "temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
ROLES = {"developer": "system"}
"""Where chat templates know another one."""


def to_chat(body: Json, extra: tuple[str, ...]) -> Json:
    """The chat body, with these fields too; raises Refusal where the body cannot be read or answered."""
    if body.get("previous_response_id"):
        raise Refusal(404, {"error": {"message": f"Response with id '{body['previous_response_id']}' not found."}})
    if body.get("background"):
        raise unreadable("nothing is kept here, so no response is made in the background")
    try:
        return _chat(body, extra)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise unreadable(f"not a body of the Responses API: {problem!r}") from None


def _chat(body: Json, extra: tuple[str, ...]) -> Json:
    tools = [tool.in_chat for tool in tools_of(body)]
    thinks = (body.get("reasoning") or {}).get("effort") != "none"
    usual = {} if thinks else {"chat_template_kwargs": {"enable_thinking": False}}
    return {
        **usual,
        **passed(body, (*PASSED, *extra)),
        "messages": _messages(body),
        **({"max_tokens": int(body["max_output_tokens"])} if body.get("max_output_tokens") is not None else {}),
        **({"stream_options": {"include_usage": True}} if body.get("stream") else {}),
        **({"tools": tools} if tools else {}),
        **({"tool_choice": choice_in_chat(body["tool_choice"])} if tools and body.get("tool_choice") else {}),
    }


def _messages(body: Json) -> list[Json]:
    given = body["input"]
    told = [{"role": "system", "content": text(body["instructions"])}] if body.get("instructions") else list[Json]()
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        _add(told, item)
    if not told:
        raise ValueError("input must not be empty")
    return told


def _add(told: list[Json], item: Json) -> None:
    """Put one item where it belongs: into the reply at hand, or behind all that was said."""
    match item.get("type", "message"):
        case "message" if item["role"] == "assistant":
            _reply(told, "content", "tool_calls")["content"] = "".join(texts(item["content"]))
        case "message":
            told.append({"role": ROLES.get(item["role"], item["role"]), "content": _content(item["content"])})
        case "reasoning":
            _reply(told, "reasoning_content", "content", "tool_calls")["reasoning_content"] = _thought(item)
        case "function_call":
            _call(told, item, item["arguments"])
        case "custom_tool_call":
            _call(told, item, wrapped(item["input"]))
        case "function_call_output" | "custom_tool_call_output":
            told.append({"role": "tool", "tool_call_id": item["call_id"], "content": "\n".join(texts(item["output"]))})
        case other:
            raise ValueError(f"an item of type {other}")


def _reply(told: list[Json], *later: str) -> Json:
    """The reply that an item belongs to: the last one, unless it holds what comes with or after the item."""
    if not told or told[-1]["role"] != "assistant" or any(name in told[-1] for name in later):
        told.append({"role": "assistant"})
    return told[-1]


def _call(told: list[Json], item: Json, arguments: str) -> None:
    call = {
        "id": item["call_id"],
        "type": "function",
        "function": {"name": chat_name(item), "arguments": arguments},
    }
    _reply(told).setdefault("tool_calls", []).append(call)


def _thought(item: Json) -> str:
    """Out of the seal, else as told, else its summary."""
    told, summed_up = ("\n".join(texts(item.get(name))) for name in ("content", "summary"))
    return unseal(item.get("encrypted_content")) or told or summed_up


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_part(part) for part in content]


def _part(part: Json) -> Json:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": text(part["text"])}
