"""What an engine can be made to say, and how it can be made to fail."""

from dataclasses import dataclass
from typing import Any, Literal

from proxy.sim.template import Json, print_turn
from proxy.sim.tokens import TURN_END, encode


@dataclass(frozen=True, slots=True)
class ToolSay:
    """A tool call the model prints; the arguments are printed as they stand, valid JSON or not."""

    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Say:
    """The words of a reply."""

    text: str = ""
    reasoning: str | None = None
    calls: tuple[ToolSay, ...] = ()
    finish: Literal["stop", "length", "abort"] | None = None
    """How it ends; left out, it ends by the model's own end token."""

    def ids(self, *, thinking: bool) -> tuple[int, ...]:
        """The tokens a real model would print for this: an open thought is closed before the words."""
        reasoning = (self.reasoning or "") if thinking else None
        printed = print_turn(reasoning, self.text, ((c.name, c.arguments) for c in self.calls))
        return (*encode(printed), TURN_END) if self.finish in (None, "stop") else encode(printed)


FaultKind = Literal[
    "status",
    "html",
    "half_json",
    "cut",
    "stall",
    "stall_before_headers",
    "no_ids",
    "wrong_count",
    "no_usage",
    "abort",
    "error_frame",
    "no_logprobs",
    "null_logprob",
    "no_finish",
    "slow",
    "halt",
    "refuse",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. `say` gives the words of the reply that it happens to."""

    kind: FaultKind
    code: int = 200
    body: Any = None
    after: int = 0
    seconds: float = 0.0
    say: Say | None = None

    @staticmethod
    def status(code: int, body: Any = None) -> "Fault":
        """An error status, with the engine's own error body unless one is given."""
        return Fault("status", code=code, body=body)

    @staticmethod
    def html(code: int = 502) -> "Fault":
        """An error page of some machine in between."""
        return Fault("html", code=code)

    @staticmethod
    def half_json(say: Say | None = None) -> "Fault":
        """The reply, or a stream's last event with content, stops in the middle of its JSON."""
        return Fault("half_json", say=say)

    @staticmethod
    def cut(after_events: int = 0, say: Say | None = None, *, seconds: float = 0.0) -> "Fault":
        """The connection breaks after so many events and then some silence; a whole reply in the middle of its body."""
        return Fault("cut", after=after_events, say=say, seconds=seconds)

    @staticmethod
    def stall(after_events: int = 0, seconds: float = 60.0, say: Say | None = None) -> "Fault":
        """Silence after so many events, then the rest; a whole reply is silent after its headers."""
        return Fault("stall", after=after_events, seconds=seconds, say=say)

    @staticmethod
    def stall_before_headers(seconds: float = 60.0, say: Say | None = None) -> "Fault":
        """Silence before anything is answered."""
        return Fault("stall_before_headers", seconds=seconds, say=say)

    @staticmethod
    def no_ids(say: Say | None = None) -> "Fault":
        """An engine too old to return token ids."""
        return Fault("no_ids", say=say)

    @staticmethod
    def wrong_count(say: Say | None = None) -> "Fault":
        """The last token id is missing while its logprob is there."""
        return Fault("wrong_count", say=say)

    @staticmethod
    def no_usage(say: Say | None = None) -> "Fault":
        """No usage, though it was asked for."""
        return Fault("no_usage", say=say)

    @staticmethod
    def abort(after_tokens: int = 4, say: Say | None = None) -> "Fault":
        """The engine is told to abort the call: a normal answer, partial, with finish reason `abort`."""
        return Fault("abort", after=after_tokens, say=say)

    @staticmethod
    def error_frame(after_events: int = 0, say: Say | None = None) -> "Fault":
        """An error in the middle of a stream; a whole reply becomes a 500."""
        return Fault("error_frame", code=500, after=after_events, say=say)

    @staticmethod
    def no_logprobs(say: Say | None = None) -> "Fault":
        """No logprobs, though they were asked for."""
        return Fault("no_logprobs", say=say)

    @staticmethod
    def null_logprob(say: Say | None = None) -> "Fault":
        """The first token's logprob is null."""
        return Fault("null_logprob", say=say)

    @staticmethod
    def no_finish(say: Say | None = None) -> "Fault":
        """A reply that ends without a finish reason."""
        return Fault("no_finish", say=say)

    @staticmethod
    def slow(seconds_per_token: float, say: Say | None = None) -> "Fault":
        """A slow reply."""
        return Fault("slow", seconds=seconds_per_token, say=say)

    @staticmethod
    def halt(after_tokens: int = 4, say: Say | None = None) -> "Fault":
        """A reply that gets no further than so many tokens until the engine is told to go on, or to abort it."""
        return Fault("halt", after=after_tokens, say=say)

    @staticmethod
    def refuse(code: int = 429) -> "Fault":
        """The engine is too busy to take the call, and says when to come back."""
        return Fault("refuse", code=code)


Item = Say | Fault


def item_from_json(written: Json) -> Item:
    """A scripted item as it comes over HTTP: `{"say": {...}}` or `{"fault": NAME, ...its arguments}`."""
    if "fault" not in written:
        return say_from_json(written["say"])
    arguments = {key: value for key, value in written.items() if key != "fault"}
    if "say" in arguments:
        arguments["say"] = say_from_json(arguments["say"])
    if written["fault"] not in FaultKind.__args__:  # type: ignore[attr-defined]  # what a Literal lists
        raise ValueError(f"there is no fault called {written['fault']!r}")
    fault: Fault = getattr(Fault, written["fault"])(**arguments)
    return fault


def say_from_json(written: Json) -> Say:
    """A `Say` as it comes over HTTP."""
    calls = tuple(ToolSay(**call) for call in written.get("calls") or ())
    return Say(**{**written, "calls": calls})
