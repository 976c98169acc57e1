"""Plain prompts, of the completions API: a text, or token ids; each a conversation of one message of a role of its own.

No chat message has that role, so a prompt never means the same as a conversation; nor does a text mean the same as ids,
since nothing here knows which ids a text becomes.
"""

from typing import Any

from proxy.errors import BadAsk
from proxy.model import IDS_PART, Ask, EngineFacts, JsonObject, prompt_in

PROMPT_ROLE = "prompt"


def read_prompt(value: Any) -> str | list[int]:
    """The one prompt of a body; raises BadAsk on none, on several, and on what is no prompt."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value):
        return value
    if isinstance(value, list) and len(value) > 1 and all(isinstance(item, str | list) for item in value):
        raise BadAsk("one prompt at a time: ask once for each, or use n for several replies to one", param="prompt")
    raise BadAsk("prompt must be a text that is not empty, or a list of token ids", param="prompt")


def prompt_message(prompt: str | list[int]) -> JsonObject:
    """A prompt as the whole of a conversation: its text, or one part that holds its ids."""
    content = prompt if isinstance(prompt, str) else [{"type": IDS_PART, IDS_PART: prompt}]
    return {"role": PROMPT_ROLE, "content": content}


def prompt_ids(ask: Ask) -> list[int] | None:
    """The ids of an ask that names them itself."""
    prompt = prompt_in(ask) if ask.api == "completions" else ""
    return prompt if isinstance(prompt, list) else None


def refuse_foreign_ids(ask: Ask, facts: EngineFacts) -> None:
    """Raise BadAsk where an id is none of the model's: it would take SGLang's whole server down."""
    ids = prompt_ids(ask)
    if ids is None:
        return
    if facts.vocabulary is None:
        raise BadAsk(
            "the engine does not tell which token ids its model knows: send the prompt as text", param="prompt"
        )
    place = next((place for place, token in enumerate(ids) if token >= facts.vocabulary), None)
    if place is not None:
        raise BadAsk(
            f"prompt[{place}]: {ids[place]} is no token id of the model, which has 0 to {facts.vocabulary - 1}",
            code="unknown_token_id",
            param="prompt",
        )
