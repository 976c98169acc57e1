"""A Messages body as a chat body. Seeds, ids and whatever else chat has beyond the API do not get through."""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from proxy.sim.apis.api import passed, text, texts, unreadable
from proxy.sim.template import Json

PASSED = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
RESULT = "tool_result"


def to_chat(body: Json) -> Json:
    """The chat body; raises Refusal where a field is missing or has another form than Anthropic's."""
    try:
        return _chat(body)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise unreadable(f"not a body of the Messages API: {problem!r}") from None


def _chat(body: Json) -> Json:
    system = "\n".join(texts(body.get("system")))
    head = [{"role": "system", "content": system}] if system else []
    told = [one for message in body["messages"] for one in _told(message)]
    thinks = (body.get("thinking") or {}).get("type") != "disabled"
    tools = [_tool(tool) for tool in body.get("tools") or () if "input_schema" in tool]
    if not told or int(body["max_tokens"]) < 1:
        raise ValueError("messages and max_tokens must not be empty")
    return {
        **passed(body, PASSED),
        "messages": [*head, *told],
        **({"stop": list(map(text, body["stop_sequences"]))} if body.get("stop_sequences") else {}),
        **({} if thinks else {"chat_template_kwargs": {"enable_thinking": False}}),
        **({"stream_options": {"include_usage": True}} if body.get("stream") else {}),
        **({"tools": tools} if tools else {}),
        **({"tool_choice": _choice(body["tool_choice"])} if tools and body.get("tool_choice") else {}),
    }


def _told(message: Json) -> Iterator[Json]:
    """The chat messages that one of Anthropic's makes: each tool result is one of its own."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        yield {"role": role, "content": content}
    elif role == "assistant":
        yield _reply(content)
    else:
        for is_result, blocks in groupby(content, lambda block: block["type"] == RESULT):
            if is_result:
                yield from map(_result, blocks)
            else:
                yield {"role": role, "content": [_part(block) for block in blocks]}


def _result(block: Json) -> Json:
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": "\n".join(texts(block.get("content")))}


def _part(block: Json) -> Json:
    if block["type"] == "text":
        return {"type": "text", "text": text(block["text"])}
    if block["type"] == "image":
        source = block["source"]
        url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise ValueError(f"a block of type {block['type']}")


def _reply(blocks: Iterable[Json]) -> Json:
    """An earlier reply: its thoughts, its words and its calls."""
    blocks = list(blocks)
    thoughts = "\n".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    calls = [_call(block) for block in blocks if block["type"] == "tool_use"]
    return {
        "role": "assistant",
        "content": "".join(texts(blocks)),
        **({"reasoning_content": thoughts} if thoughts else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _call(block: Json) -> Json:
    function = {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)}
    return {"id": block["id"], "type": "function", "function": function}


def _tool(tool: Json) -> Json:
    function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _choice(choice: Json) -> Any:
    if choice["type"] == "tool":
        return {"type": "function", "function": {"name": choice["name"]}}
    return {"any": "required"}.get(choice["type"], choice["type"])
