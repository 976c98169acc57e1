"""Small cases written out, for what a test is about alone."""

from collections.abc import Sequence
from typing import Any

from proxy.model import JsonObject
from tests.joint.case import Case
from tests.joint.engine import Engine, Kind
from tests.joint.families import family_of, templates
from tests.joint.texts import Literals
from tests.joint.vocabulary import vocabulary


def user(text: str | None) -> JsonObject:
    return {"role": "user", "content": text}


def said(text: str | None, *calls: str) -> JsonObject:
    """An assistant's turn, with calls of these ids."""
    message: JsonObject = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": identity,
                "type": "function",
                "function": {"name": "look_up", "arguments": {"path": f"nonce{identity}"}},
                "spelling": {},
            }
            for identity in calls
        ]
    return message


def result(content: str | None, call: str = "aaz") -> JsonObject:
    return {"role": "tool", "tool_call_id": call, "content": content}


def by_hand(
    template: str,
    messages: Sequence[JsonObject],
    *,
    wrote: str = "nonceaab",
    kind: Kind = "vllm",
    wants_parts: bool = False,
    **changes: Any,
) -> Case:
    """A case whose parent is the last assistant's turn; `wrote` is its text as sampled, without the end."""
    family = family_of(template)
    tokens = vocabulary(family.all_controls)
    place = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
    made: dict[str, Any] = {
        "template": template,
        "seed": "by hand",
        "engine": Engine(
            templates()[template], kind, wants_parts or family.wants_parts, variables={"bos_token": "<bos>"}
        ),
        "messages": tuple(messages),
        "start": place,
        "stop": place + 1,
        "end": family.text_end,
        "finish": "natural",
        "finish_reason": "stop",
        "matched_stop": None,
        "stops": (),
        "has_stop_ids": False,
        "knows_ends": False,
        "reasoning": "",
        "whole_echo": True,
        "literals": Literals(),
        **changes,
    }
    ends = () if made["end"] is None else (tokens.controls[made["end"]],)
    return Case(**{"sampled": tokens.encode(wrote) + ends, **made})
