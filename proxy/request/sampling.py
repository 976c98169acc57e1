"""The pin: what the client asked of the sampler, and what the engine is told instead.

Every field of a request falls into exactly one group below. A field in none of them does not reach an engine, whatever
the settings say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.errors import BadAsk, PinViolated
from proxy.model import PINNED_FIELDS, RENDERER_ARGUMENTS, JsonObject, Profile, Sampling

LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "stop", "stop_token_ids")
SHAPING_FIELDS = (
    "response_format",
    "structured_outputs",
    "regex",
    "ebnf",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
)
CONVERSATION_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
    "continue_final_message",
    "documents",
)
# Read by the proxy itself and set anew for the engine.
WIRE_FIELDS = ("model", "stream", "stream_options", "n", "seed", "logprobs", "top_logprobs")
KNOWN_FIELDS = frozenset((*PINNED_FIELDS, *LENGTH_FIELDS, *SHAPING_FIELDS, *CONVERSATION_FIELDS, *WIRE_FIELDS))

# OpenAI takes 4 stop strings. Engines hold each against the reply at every token, so that without a bound one request
# could keep an engine busy for all.
MOST_STOPS = 64
LONGEST_STOP = 1000

STRICT_TOOLS = "tools.strict"
TOOL_CHOICE = "tool_choice"

FieldAction = Literal["flag", "drop", "refuse"]


@dataclass(frozen=True, slots=True)
class PinRules:
    """How a client's fields are treated."""

    strict: bool
    constrained: FieldAction
    refuse_unknown: bool
    shaping_understood: frozenset[str]
    """Shaping fields that the engine at hand acts on."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens a reply may take; None where nothing bounds it or it was not measured."""

    context: int | None = None
    """What still fits the model's context."""
    budget: int | None = None
    """What the rollout may still generate; 0 ends the reply before it begins."""


def pin_sampling(
    body: JsonObject, profile: Profile, rules: PinRules, room: Room, left_out: Sequence[str] = ()
) -> Sampling:
    """Decide every value that bears on how tokens are drawn, and record what was asked. Raises BadAsk.

    `body` is in chat form; `left_out` names what else the client sent.
    """
    effective = profile.pinned()
    overridden = tuple(_overridden(body, effective, strict=rules.strict))
    shaping, constrained, dropped = _shape(body, rules)
    unknown = _unknown(body, left_out, refuse=rules.refuse_unknown)
    ignored = sorted({*dropped, *unknown, *renderer_arguments(body), *left_out})
    return Sampling(
        effective=effective,
        asked=_asked(body),
        overridden=overridden,
        length=_length(body, profile.max_tokens_cap, room),
        shaping=shaping,
        constrained=tuple(constrained),
        ignored=tuple(ignored),
    )


def asked_max_tokens(body: Mapping[str, Any]) -> int | None:
    """The client's own limit: max_completion_tokens before max_tokens. Raises BadAsk unless a whole number over 0."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadAsk(f"{name} must be an integer, not {_shown(value)}", param=name)
        if value < 1:
            raise BadAsk(f"{name} must be at least 1, not {value}", param=name)
        return value
    return None


def read_stops(name: str, value: object) -> list[str]:
    """The stop strings of a request, given as one or as a list. Raises BadAsk under the client's name for them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise BadAsk(f"{name} must be a non-empty text or a list of them", param=name)
    if len(texts) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in texts):
        raise BadAsk(f"{name}: at most {MOST_STOPS} texts of at most {LONGEST_STOP} characters each", param=name)
    return texts


def _overridden(body: JsonObject, effective: Mapping[str, float | int], *, strict: bool) -> Iterator[str]:
    for name, allowed in effective.items():
        asked = body.get(name)
        if asked is None:
            continue
        if isinstance(asked, bool) or not isinstance(asked, int | float):
            raise BadAsk(f"{name} must be a number, not {_shown(asked)}", param=name)
        if asked != allowed:
            if strict:
                raise PinViolated(name, asked, allowed)
            yield name


def _asked(body: JsonObject) -> JsonObject:
    """What the client said of sampling, length, shape and seed; nulls say nothing."""
    names = (*PINNED_FIELDS, *LENGTH_FIELDS, *SHAPING_FIELDS, TOOL_CHOICE, "seed", "n")
    return {name: body[name] for name in names if body.get(name) is not None}


def _length(body: JsonObject, cap: int | None, room: Room) -> JsonObject:
    limits = [limit for limit in (asked_max_tokens(body), cap, room.budget) if limit is not None]
    if limits and room.context is not None:
        limits.append(room.context)
    length: JsonObject = {"max_tokens": min(limits)} if limits else {}
    if (stop := body.get("stop")) not in (None, [], ""):
        length["stop"] = read_stops("stop", stop)
    if (ids := body.get("stop_token_ids")) not in (None, []):
        length["stop_token_ids"] = _stop_ids("stop_token_ids", ids)
    return length


def _shape(body: JsonObject, rules: PinRules) -> tuple[JsonObject, list[str], list[str]]:
    """Shaping fields to pass, names of those in force, names of those dropped."""
    passed: JsonObject = {}
    constrained: list[str] = []
    dropped: list[str] = []
    for name, value in _shaping_asked(body):
        if rules.constrained == "refuse":
            raise BadAsk(f"{name} bends the sampling distribution and is refused here", param=name)
        if rules.constrained == "drop" or (name in SHAPING_FIELDS and name not in rules.shaping_understood):
            dropped.append(name)
            continue
        constrained.append(name)
        if name != STRICT_TOOLS:
            passed[name] = value
    return passed, constrained, dropped


def _shaping_asked(body: JsonObject) -> Iterator[tuple[str, Any]]:
    """Shaping fields of a request, less those at a value that changes nothing."""
    for name in SHAPING_FIELDS:
        value = body.get(name)
        if value in (None, {}, [], "", 0) or (name == "response_format" and value == {"type": "text"}):
            continue
        yield name, value
    if forces_tools(body.get(TOOL_CHOICE)):
        yield TOOL_CHOICE, body[TOOL_CHOICE]
    if any(_is_strict(tool) for tool in body.get("tools") or []):
        yield STRICT_TOOLS, True


def forces_tools(choice: object) -> bool:
    """Whether a tool_choice makes engines constrain the output to calls."""
    return choice is not None and choice not in ("auto", "none")


def _is_strict(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and function.get("strict") is True


def _unknown(body: JsonObject, left_out: Sequence[str], *, refuse: bool) -> list[str]:
    strange = [name for name, value in body.items() if name not in KNOWN_FIELDS and value is not None]
    unknown = sorted(strange + [name for name in left_out if "." not in name])
    names = [name.encode("utf-8", "backslashreplace").decode() for name in unknown]
    if names and refuse:
        raise BadAsk(f"unknown fields: {', '.join(names)}", code="unknown_field", param=names[0])
    return names


def renderer_arguments(body: Mapping[str, Any]) -> list[str]:
    """What a client tried to tell the renderer instead of the template; never passed."""
    given = body.get("chat_template_kwargs")
    return [f"chat_template_kwargs.{name}" for name in given or () if name in RENDERER_ARGUMENTS]


def _stop_ids(name: str, value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        raise BadAsk(f"{name} must be a list of token ids", param=name)
    if len(value) > MOST_STOPS:
        raise BadAsk(f"{name}: at most {MOST_STOPS} token ids, not {len(value)}", param=name)
    return value


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
