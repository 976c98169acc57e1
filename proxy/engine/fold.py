"""Folds the events of one reply, streamed or whole, into tokens and a message, and checks that the counts agree.

Every event counts, also one with an empty delta: engines send ids without text for half a character, for swallowed
markup and for the end token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Protocol, TypeAlias

from proxy.echo import client_message
from proxy.engine.refusal import error_frame
from proxy.engine.text_events import in_chat_form
from proxy.errors import EngineFault
from proxy.ids import LARGEST_VOCABULARY, are_ids
from proxy.model import Completion, JsonObject, Plan, Tokens

ABORTED = "abort"
# vLLM prints minus infinity as this.
NO_LOGPROB = -9999.0
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "reasoning_tokens")
DETAILS = ("prompt_tokens_details", "completion_tokens_details")
# Beyond any logprob, and within what a float holds.
LARGEST_NUMBER = 1e300
# Rounding may lift a logprob of a certain token a hair above 0.
MOST_LOGPROB = 1e-4


Candidates: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Arrived:
    """What one event carried of the sequence; None where it said nothing."""

    prompt_ids: list[int] | None = None
    completion_ids: list[int] = field(default_factory=list)
    weight_versions: list[JsonObject] = field(default_factory=list)
    candidates: list[Candidates] = field(default_factory=list)
    routed_experts: str | None = None


class TokenReader(Protocol):
    """Where one engine kind puts ids in its events."""

    def __call__(self, event: JsonObject, choice: JsonObject) -> Arrived: ...


class ReplyFold:
    """One reply while it arrives."""

    def __init__(self, plan: Plan, read_tokens: TokenReader, reasoning_field: str) -> None:
        self._plan = plan
        self._read_tokens = read_tokens
        self._reasoning_field = reasoning_field
        self._message = MessageFold()
        self._prompt_ids: list[int] = []
        self._completion_ids: list[int] = []
        self._logprobs: list[Any] = []
        self._entries: list[Any] = []
        self._weight_versions: list[JsonObject] = []
        self._candidates: list[Candidates] = []
        self._routed_experts: list[str] = []
        self._usage: JsonObject | None = None
        self._finish_reason: str | None = None
        self._matched_stop: int | str | None = None

    @property
    def ended(self) -> bool:
        """Whether an event so far has shown that the reply is over."""
        return self._finish_reason is not None

    def feed(self, event: JsonObject) -> JsonObject:
        """Take in one event, and give it back in chat form.

        Raises EngineFault where it is an error frame or no event of a reply at all.
        """
        if fault := error_frame(event):
            raise fault
        try:
            said = in_chat_form(event)
            if self._plan.audit_top:
                hide_candidates(said, self._plan.ask.top_logprobs)
            self._take(said)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EngineFault("engine_malformed", 502, f"an event of unknown form: {str(event)[:200]}") from error
        return said

    def _take(self, event: JsonObject) -> None:
        choice = _only_choice(event["choices"])
        self._take_tokens(self._read_tokens(event, choice))
        self._take_logprobs(choice.get("logprobs"))
        self._message.feed(choice.get("delta") or choice.get("message") or {})
        if event.get("usage") is not None:
            self._usage = _checked_usage(event["usage"])
        if reason := choice.get("finish_reason"):
            self._finish_reason = _checked_text(reason)
            self._matched_stop = _matched_stop(choice)

    def finish(self) -> Completion:
        """The whole reply; raises EngineFault where it never came to its end."""
        if not self.ended and self._is_mute():
            self._finish_reason = ABORTED
        if not self.ended:
            raise EngineFault("engine_cut", 502, "the engine's reply stopped without a finish reason")
        return self.partial()

    def _is_mute(self) -> bool:
        """vLLM's streams leave out an end that comes before the first token, as an abort's; only the usage follows."""
        return self._usage is not None and self._usage.get("completion_tokens") == 0 and not self._completion_ids

    def partial(self) -> Completion:
        """What has arrived so far."""
        said = self._message.whole()
        return Completion(
            tokens=Tokens(
                tuple(self._prompt_ids),
                tuple(self._completion_ids),
                tuple(float(value) for value in self._logprobs if _is_number(value)),
            ),
            finish_reason=self._finish_reason,
            message=client_message(said, self._plan, self._reasoning_field),
            engine_message=said,
            usage=self._usage,
            weight_versions=tuple(self._weight_versions),
            logprob_entries=tuple(self._entries) if self._plan.ask.wants_logprobs else (),
            matched_stop=self._matched_stop,
            candidates=tuple(self._candidates),
            routed_experts=tuple(self._routed_experts),
            capture_gaps=tuple(self._gaps()),
        )

    def _take_tokens(self, arrived: Arrived) -> None:
        if arrived.prompt_ids is not None and not self._prompt_ids:
            self._prompt_ids = _checked_ids(arrived.prompt_ids)
        self._completion_ids.extend(_checked_ids(arrived.completion_ids))
        self._weight_versions.extend(arrived.weight_versions)
        self._candidates.extend(arrived.candidates)
        if arrived.routed_experts is not None:
            self._routed_experts.append(str(arrived.routed_experts))

    def _take_logprobs(self, logprobs: Any) -> None:
        content = logprobs.get("content") if logprobs is not None else None
        for token in content or ():
            self._logprobs.append(token.get("logprob"))
            self._entries.append(_checked_entry(token))

    def _gaps(self) -> Iterator[str]:
        """Each way in which these tokens cannot be trusted."""
        usage = self._usage or {}
        if not self._prompt_ids:
            yield "prompt_ids_missing"
        elif usage and usage.get("prompt_tokens") != len(self._prompt_ids):
            yield "prompt_count_mismatch"
        if not self._completion_ids:
            yield "completion_ids_missing"
        elif usage and usage.get("completion_tokens") != len(self._completion_ids):
            yield "completion_count_mismatch"
        if not usage:
            yield "usage_missing"
        if len(self._logprobs) != len(self._completion_ids):
            yield "logprobs_misaligned"
        if not all(_is_logprob(value) for value in self._logprobs):
            yield "logprob_not_a_number"
        if not self._within_vocabulary():
            yield "id_out_of_vocabulary"

    def _within_vocabulary(self) -> bool:
        size = self._plan.engine.facts.vocabulary or LARGEST_VOCABULARY
        return max(max(self._prompt_ids, default=0), max(self._completion_ids, default=0)) < size


class MessageFold:
    """The assistant message out of deltas; reasoning is kept under `reasoning`, whatever the engine calls it."""

    def __init__(self) -> None:
        self._texts: dict[str, str | None] = {"content": None, "reasoning": None, "refusal": None}
        self._calls: dict[int, JsonObject] = {}

    def feed(self, delta: Mapping[str, Any]) -> None:
        for name, key in (
            ("content", "content"),
            ("reasoning", "reasoning"),
            ("reasoning", "reasoning_content"),
            ("refusal", "refusal"),
        ):
            if delta.get(key) is not None:
                self._texts[name] = (self._texts[name] or "") + delta[key]
        for position, piece in enumerate(delta.get("tool_calls") or ()):
            self._feed_call(position, piece)

    def whole(self) -> JsonObject:
        """The message so far: role and content always, the rest where there is any."""
        message: JsonObject = {"role": "assistant", "content": self._texts["content"]}
        message |= {name: text for name, text in self._texts.items() if name != "content" and text}
        if self._calls:
            message["tool_calls"] = list(self._calls.values())
        return message

    def _feed_call(self, position: int, piece: JsonObject) -> None:
        index = piece.get("index")
        known = self._calls.setdefault(
            index if isinstance(index, int) else position,
            {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
        )
        known["id"] = known["id"] or piece.get("id")
        function = piece.get("function") or {}
        known["function"]["name"] += function.get("name") or ""
        known["function"]["arguments"] += function.get("arguments") or ""


def _matched_stop(choice: JsonObject) -> int | str | None:
    """vLLM calls it stop_reason, SGLang matched_stop."""
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    return matched if isinstance(matched, int | str) and not isinstance(matched, bool) else None


def _only_choice(choices: Any) -> JsonObject:
    """The one choice that was asked for, or none; raises ValueError on more, TypeError on anything else."""
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise TypeError("choices must be a list of objects")
    if len(choices) > 1 or any(choice.get("index") not in (None, 0) for choice in choices):
        raise ValueError("one choice was asked for")
    return choices[0] if choices else {}


def hide_candidates(event: JsonObject, shown: int) -> None:
    """Cut the alternatives of each token to as many as the client asked for: the others are the audit's."""
    for choice in event["choices"]:
        for token in (choice.get("logprobs") or {}).get("content") or ():
            token["top_logprobs"] = (token.get("top_logprobs") or [])[:shown]


def _checked_ids(ids: list[int]) -> list[int]:
    """The ids as they are; raises ValueError where they are no list of ids."""
    if not are_ids(ids):
        raise ValueError("not token ids")
    return list(ids)


def _checked_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _checked_entry(entry: JsonObject) -> JsonObject:
    """A token's logprob object as clients can be told of it; raises TypeError or AttributeError where it is none."""
    _checked_text(entry.get("token"))
    for other in entry.get("top_logprobs") or ():
        _checked_text(other.get("token"))
    return entry


def _checked_usage(usage: JsonObject) -> JsonObject:
    """The engine's counts as clients can be told of them; raises TypeError or AttributeError where they are none."""
    for name in COUNTS:
        if type(usage.get(name)) not in {int, NoneType}:
            raise TypeError(f"{name} is no count")
    for name in DETAILS:
        if not isinstance(usage.get(name), dict | None):
            raise TypeError(f"{name} are no counts")
    return usage


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def _is_logprob(value: Any) -> bool:
    return _is_number(value) and NO_LOGPROB < value <= MOST_LOGPROB
