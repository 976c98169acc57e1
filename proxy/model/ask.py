"""What is asked: one model call as the harness put it, and the conversation in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from proxy.model.rollout import Identity
from proxy.model.words import JsonObject

Api = Literal["chat", "messages", "responses", "completions"]

# Names under chat_template_kwargs that are not the template's but the renderer's: they would replace the template, the
# messages or the tools, or change what the renderer returns.
RENDERER_ARGUMENTS = frozenset(
    {
        "chat_template",
        "conversation",
        "messages",
        "tools",
        "documents",
        "tokenize",
        "tokenizer_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "processor_kwargs",
        "mm_processor_kwargs",
    }
)

# The part of a plain prompt's message that holds token ids.
IDS_PART = "token_ids"


@dataclass(frozen=True, slots=True)
class Conversation:
    """The canonical form of what the model is shown, as hashes."""

    history: tuple[str, ...]
    """Chain hash after 0, 1, … n messages; the last stands for all of them."""
    tools_hash: str
    template_hash: str
    context: str
    """One hash over history, tools and template arguments: what seeds and repeats are keyed by."""
    has_assistant: bool


@dataclass(frozen=True, slots=True)
class VolatileLine:
    """A line of the client's that changes on each request and was put to a fixed value."""

    message: int
    rule: str
    original: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One model call as the harness put it."""

    identity: Identity
    api: Api
    body: JsonObject
    """The client's body, untouched."""
    chat: JsonObject
    """The same request in the fields of chat completions, which all decisions read; for chat the body itself."""
    messages: tuple[JsonObject, ...]
    """The messages as the engine is to see them: the client's, volatile lines settled."""
    volatile: tuple[VolatileLine, ...]
    conversation: Conversation
    stream: bool
    choices: int
    """n: how many replies to draw."""
    include_usage: bool
    wants_logprobs: bool
    top_logprobs: int
    requested_model: str | None
    has_tools: bool
    left_out: tuple[str, ...] = ()
    """What of the client's body has no chat form: top-level fields by name, parts of others as `field.part`."""
    engine_call_ids: Mapping[str, str] = field(default_factory=dict)
    """Tool-call ids that the client echoes -> the engine's own, once they were looked up."""


def prompt_in(ask: Ask) -> str | list[int]:
    """The text or the ids that a plain completion has instead of a conversation."""
    content: Any = ask.messages[0]["content"]
    prompt: str | list[int] = content if isinstance(content, str) else content[0][IDS_PART]
    return prompt
