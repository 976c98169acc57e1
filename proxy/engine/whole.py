"""The message that all ids of a reply make, read by the engine's own parsers.

Parsers begin anew where an interrupted reply is asked on: a thought that was closed before the cut opens again, a tool
call across it falls apart. So the whole is read once more, from its ids. Where an engine has no way to be asked that,
the answer is None, and nothing is guessed.

Seen on SGLang 0.5.23 and vLLM 0.32.0; what each endpoint does differently from chat stands where it is asked.
"""

from collections.abc import Sequence
from typing import Any

from proxy.engine.dialect import Dialect, engine_tools, tool_choice
from proxy.engine.seam import NO_CHARACTER
from proxy.engine.upstream import Upstream
from proxy.model import JsonObject, Plan, Tokens

# The only reasoning parser whose endpoint was compared with what chat makes of the same ids.
SGLANG_REASONING_PARSER = "qwen3"
THINK_START = "<think>"
# Finish reasons after which the last id is the one that ended the reply, and no part of its text.
ENDED_BY_TOKEN = frozenset({"stop", "tool_calls"})


async def read_whole(
    upstream: Upstream, dialect: Dialect, plan: Plan, tokens: Tokens, finish_reason: str
) -> JsonObject | None:
    """The assistant message (reasoning under `reasoning`) of all these ids, or None where the engine cannot tell.

    Raises EngineFault only where no answer came.
    """
    ids = tokens.completion_ids
    printed = ids[:-1] if finish_reason in ENDED_BY_TOKEN else ids
    if not printed:
        return _message("", None, [])
    if plan.ask.api == "completions":
        text = await _plain_text(upstream, plan, printed)
        return None if text is None else _message(text, None, [])
    reader = _SglangReader(upstream, plan) if dialect.kind == "sglang" else _VllmReader(upstream, dialect, plan)
    return await reader.read(tokens.prompt_ids, printed)


async def may_be_end(upstream: Upstream, plan: Plan, token: int) -> bool:
    """Whether this id could be one that ends a turn: all that do are special tokens, which print nothing."""
    answer = await _ask(upstream, plan, "/detokenize", {"tokens": [token], "skip_special_tokens": True})
    return _text_of(answer, "text") in (None, "")


async def _plain_text(upstream: Upstream, plan: Plan, ids: Sequence[int]) -> str | None:
    """The text of plain completions, which no parser reads; vLLM answers under `prompt`, and keeps special tokens.

    Its completions leave out what comes last and is no character, down to the last token that ended in one.
    """
    is_sglang = plan.engine.facts.kind == "sglang"
    for end in range(len(ids), 0, -1):
        answer = await _ask(upstream, plan, "/detokenize", {"tokens": list(ids[:end]), "skip_special_tokens": True})
        text = _text_of(answer, "text" if is_sglang else "prompt")
        if is_sglang or text is None or not text.endswith(NO_CHARACTER):
            return text
    return ""


class _SglangReader:
    """SGLang: the text of the ids, then the two parsers that chat runs over a text."""

    def __init__(self, upstream: Upstream, plan: Plan) -> None:
        self._upstream = upstream
        self._plan = plan
        self._parsers = plan.engine.facts.details

    async def read(self, prompt: Sequence[int], ids: Sequence[int]) -> JsonObject | None:  # noqa: ARG002  as below
        text = await self._text(ids)
        if text is None:
            return None
        thought = await self._thought(text)
        if thought is None:
            return None
        reasoning, said = thought
        return await self._message(reasoning, said)

    async def _text(self, ids: Sequence[int]) -> str | None:
        """As chat decodes it: special tokens are left out, unless the call may use tools."""
        answer = await self._ask("/detokenize", {"tokens": list(ids), "skip_special_tokens": not self._has_tools})
        return _text_of(answer, "text")

    async def _thought(self, text: str) -> tuple[str, str] | None:
        """Reasoning and the rest. The endpoint, unlike chat, needs the opening mark to see a thought at all."""
        parser = self._parsers.get("reasoning_parser")
        if parser is None:
            return "", text
        if parser != SGLANG_REASONING_PARSER:
            return None
        if self._is_thinking:
            # A stream takes the first opening mark out of a thought wherever it stands, a whole reply only in front.
            text = THINK_START + (text.replace(THINK_START, "", 1) if self._plan.ask.stream else text)
        answer = await self._ask("/separate_reasoning", {"text": text, "reasoning_parser": parser})
        reasoning, said = _text_of(answer, "reasoning_text"), _text_of(answer, "text")
        return None if reasoning is None or said is None else (reasoning, said)

    async def _message(self, reasoning: str, said: str) -> JsonObject | None:
        parser = self._parsers.get("tool_call_parser")
        if parser is None or not self._has_tools:
            return _message(said, reasoning, [])
        asked = {"text": said, "tools": engine_tools(self._plan), "tool_call_parser": parser}
        answer = await self._ask("/parse_function_call", asked)
        content, calls = _text_of(answer, "normal_text"), answer.get("calls") if answer else None
        if content is None or not isinstance(calls, list):
            return None
        return _message(content, reasoning, [_call(None, call.get("name"), call.get("parameters")) for call in calls])

    @property
    def _has_tools(self) -> bool:
        return bool(engine_tools(self._plan)) and tool_choice(self._plan.ask) != "none"

    @property
    def _is_thinking(self) -> bool:
        return (self._plan.ask.chat.get("chat_template_kwargs") or {}).get("enable_thinking") is not False

    async def _ask(self, path: str, body: JsonObject) -> JsonObject | None:
        return await _ask(self._upstream, self._plan, path, body)


class _VllmReader:
    """vLLM: one question, which only servers with --enable-scale-out answer."""

    def __init__(self, upstream: Upstream, dialect: Dialect, plan: Plan) -> None:
        self._upstream = upstream
        self._dialect = dialect
        self._plan = plan

    async def read(self, prompt: Sequence[int], ids: Sequence[int]) -> JsonObject | None:
        choice = {"index": 0, "finish_reason": "stop", "token_ids": list(ids)}
        body = {
            "generate_response": {"request_id": self._plan.call_id, "choices": [choice]},
            "prompt_tokens": len(prompt),
            "prompt_token_ids": list(prompt),
            "chat_request": {**self._dialect.encode(self._plan).body, "stream": False, "stream_options": None},
        }
        answer = await _ask(self._upstream, self._plan, "/v1/chat/completions/derender", body)
        choices = answer.get("choices") if answer else None
        said = choices[0].get("message") if isinstance(choices, list) and choices else None
        if not isinstance(said, dict):
            return None
        calls = [
            _call(call.get("id"), call["function"].get("name"), call["function"].get("arguments"))
            for call in said.get("tool_calls") or ()
        ]
        return _message(said.get("content"), said.get("reasoning"), calls)


async def _ask(upstream: Upstream, plan: Plan, path: str, body: JsonObject) -> JsonObject | None:
    """The answer's object, or None for any status but 200."""
    engine = plan.engine
    answer = await upstream.question(engine.url, path, {"model": engine.facts.model} | body, api_key=engine.api_key)
    return answer.body if answer.status == 200 and isinstance(answer.body, dict) else None


def _text_of(answer: JsonObject | None, name: str) -> str | None:
    value = answer.get(name) if answer else None
    return value if isinstance(value, str) else None


def _message(content: str | None, reasoning: str | None, calls: list[JsonObject]) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call_id: str | None, name: Any, arguments: Any) -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": name or "", "arguments": arguments or ""}}
