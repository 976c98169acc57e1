"""A case: a conversation, a turn that a model sampled, its echo by a harness, and what came after it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from proxy.model import JsonObject
from tests.joint.engine import Engine
from tests.joint.families import Family, family_of
from tests.joint.texts import Literals
from tests.joint.vocabulary import Vocabulary, vocabulary

Finish = Literal[
    "natural", "length at the end", "length in the answer", "length in reasoning", "length in a call",
    "stop string", "stop string is the end", "stop token", "another end", "end in reasoning",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """All that is known of one turn and the request behind it. Texts are neutral until `real` makes them real."""

    template: str
    seed: str
    engine: Engine
    messages: tuple[JsonObject, ...]
    """Arguments are objects here; `spelt` makes strings of them."""
    start: int
    stop: int
    sampled: tuple[int, ...]
    """End token included."""
    end: str | None
    """The control token that was sampled last, if the turn ended by one."""
    finish: Finish
    finish_reason: str
    matched_stop: int | str | None
    """What the engine says ended it, in its own way."""
    stops: tuple[str, ...]
    has_stop_ids: bool
    knows_ends: bool
    """Whether the proxy has seen turns of this template end by themselves before."""
    reasoning: str
    """As the engine told it."""
    whole_echo: bool
    """Whether a cut turn's text came back whole."""
    literals: Literals

    @property
    def family(self) -> Family:
        return family_of(self.template)

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary(self.family.all_controls)

    @property
    def real(self) -> tuple[JsonObject, ...]:
        """The request as the proxy sees it."""
        return spelt(self.messages, self.literals)

    @property
    def neutral(self) -> tuple[JsonObject, ...]:
        """The same without markup in any text."""
        return spelt(self.messages, None)


def spelt(messages: Sequence[JsonObject], literals: Literals | None) -> tuple[JsonObject, ...]:
    """The messages with arguments as JSON strings, in the spelling that the harness chose."""
    made = list[JsonObject]()
    for message in messages:
        real = literals.real_value(message) if literals else json.loads(json.dumps(message))
        for call in real.get("tool_calls") or ():
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], **call.pop("spelling"))
        made.append(real)
    return tuple(made)
