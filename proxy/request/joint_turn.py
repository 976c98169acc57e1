"""What the joint is asked, asks and answers: a turn, questions to an engine's template, a tail or a reason."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from proxy.model import JsonObject

End = Literal["exact", "substituted", "cut"]
Form = Literal["arguments", "content"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A request in the engine's form, and the turn of it that its parent said."""

    messages: tuple[JsonObject, ...]
    start: int
    """messages[start:stop] tell the parent's turn; what stands behind them is new."""
    stop: int
    sampled: tuple[int, ...]
    """The parent's sampled ids, end token included."""
    is_natural: bool
    """Whether the last of them is an end token, by which the engine knew that the turn was over."""
    stops: tuple[str, ...] = ()
    """Stop strings of the parent's request: clients never see them, nor what follows."""
    is_over: bool = False
    """Whether it ended at an end token or at one of those strings, without the engine's saying at which."""
    is_end_named: bool = False
    """Whether the request named that token as a stop, so that it may be any control token."""
    is_at_stop_id: bool = False
    """Whether the engine stopped at the last id, be it an end token or one that the request named; no text has it."""
    reasoning: str = ""
    """What the parent thought, as the engine told it."""
    reasoning_key: str = "reasoning_content"
    """The engine's name for reasoning in a message."""

    @property
    def new(self) -> tuple[JsonObject, ...]:
        return self.messages[self.stop :]

    @property
    def told(self) -> tuple[JsonObject, ...]:
        return self.messages[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Render:
    """Which ids do these messages make, with the request's own tools and template arguments?"""

    messages: tuple[JsonObject, ...]
    generation_prompt: bool = True


@dataclass(frozen=True, slots=True)
class Decode:
    """Which text do these ids make, control tokens included?"""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unrendered:
    """The template would not have them."""

    message: str


Question: TypeAlias = Render | Decode
Answer: TypeAlias = tuple[int, ...] | str | Unrendered


@dataclass(frozen=True, slots=True)
class Tail:
    """What follows the parent's sampled ids."""

    ids: tuple[int, ...]
    end: End
    """`exact`: the template ends such a turn with the token that was sampled. `substituted`: it would print another in
    its place (gpt-oss: <|return|> for <|end|>). `cut`: the turn had no end, and the tail begins with the template's."""
    rendered: tuple[int, ...]
    """The whole request as the template prints it, a stand-in for the parent's turn: to measure how far the history
    would have drifted."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No tail is certain."""

    reason: str
    detail: str = ""


@dataclass(slots=True)
class Habits:
    """What was learned of one template on one engine."""

    ends: set[int] = field(default_factory=set)
    """End tokens: last ids of turns that ended by themselves."""

    pairs: dict[int, int] = field(default_factory=dict)
    """End token as sampled -> as printed where the turn is not the last."""
    unpaired: set[int] = field(default_factory=set)
    """End tokens that the template prints nothing else for."""
    depends_on_history: bool = False
    """The tail was seen to change with what stands before the turn: dummies are of no use."""


Found = TypeVar("Found")
Asking: TypeAlias = Generator[tuple[Question, ...], tuple[Any, ...], Found]
Steps: TypeAlias = Asking[Tail | Refused]


def parts_of(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list) else ()


def is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def texts_of(messages: Sequence[JsonObject]) -> list[str]:
    """Every text of the messages, in order; a message without any counts as an empty one."""
    found = list[str]()
    for message in messages:
        content = message.get("content")
        found += [content] if isinstance(content, str) else [part["text"] for part in parts_of(content)] or [""]
    return found


def plain_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in parts_of(content) if is_text(part))


def calls_of(messages: Sequence[JsonObject]) -> list[JsonObject]:
    return [call for message in messages for call in message.get("tool_calls") or ()]
