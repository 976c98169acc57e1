"""What stands in a request: messages as harnesses write them, of random texts and calls."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.model import JsonObject
from tests.joint.engine import Engine, Kind
from tests.joint.families import family_of, templates
from tests.joint.styles import Call
from tests.joint.texts import Literals, Texts

Content = str | None | list[JsonObject]

TOOLS = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "where"}, "n": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
    for name in ("look_up", "write_file")
)
# What requests pass to templates that know the names.
VARIABLES: Mapping[str, tuple[Any, ...]] = {
    "enable_thinking": (True, False),
    "preserve_thinking": (True, False),
    "truncate_history_thinking": (True, False),
    "keep_past_thinking": (True, False),
    "reasoning_effort": ("low", "medium"),
    "low_effort": (True,),
}


class Telling:
    """Messages for one template and one engine, by chance."""

    def __init__(self, template: str, chance: random.Random) -> None:
        self.template, self.chance = template, chance
        self.family = family_of(template)
        self.literals = Literals()
        self.texts = Texts(chance, self.literals, self.family.all_controls)
        self.identities = list[str]()
        self.engine = self._engine()
        self.reasoning_key = "reasoning" if self.engine.kind == "vllm" else "reasoning_content"

    def is_so(self, probability: float) -> bool:
        return self.chance.random() < probability

    def _engine(self) -> Engine:
        source = templates()[self.template]
        is_vllm = self.is_so(0.8 if self.family.wants_parts else 0.5)  # SGLang leaves strings to templates of parts
        kind: Kind = "vllm" if is_vllm else "sglang"
        knows_parts = "'text'" in source or '"text"' in source
        variables = {
            name: self.chance.choice(values) for name, values in VARIABLES.items() if name in source and self.is_so(0.4)
        }
        if self.family.has_tools and self.is_so(0.6):
            variables["tools"] = [*TOOLS]
        return Engine(
            source,
            kind,
            wants_parts=self.family.wants_parts or (knows_parts and self.is_so(0.3)),
            parses_arguments=self.template not in self.family.wants_string_arguments,
            variables={"bos_token": "<bos>", "eos_token": self.family.strays[0], **variables},
        )

    def calls(self) -> list[Call]:
        return [
            (self.chance.choice(("look_up", "write_file")), self.texts.arguments() if self.is_so(0.9) else {})
            for _ in range(self.chance.choice((1, 1, 1, 2, 3)))
        ]

    def told(self, reasoning: str, answer: str, calls: Sequence[Call]) -> list[JsonObject]:
        """An assistant's turn as a harness writes it."""
        message: JsonObject = {"role": "assistant"}
        if reasoning:
            match self.chance.choice(("kept", "kept", "kept", "dropped", "dropped", "renamed", "inlined")):
                case "kept":
                    message[self.reasoning_key] = reasoning
                case "renamed":
                    message["thinking" if self.is_so(0.5) else "reasoning_details"] = reasoning
                case "inlined":  # as from an engine that parses no reasoning
                    thought = self.family.style.reasoning(reasoning, is_open=False)
                    answer = self.literals.neutral(thought, self.family.all_controls) + answer
        content = self.content(answer) if answer else self.chance.choice((None, "", "absent"))
        if content != "absent":
            message["content"] = content
        if calls:
            message["tool_calls"] = [self.call(*call) for call in calls]
        return [message]

    def call(self, name: str, arguments: Mapping[str, Any]) -> JsonObject:
        keys = list(arguments)
        if self.is_so(0.3):
            self.chance.shuffle(keys)
        spelling = self.chance.choice(({}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": 1}))
        kind = self.chance.choice(("call_", "chatcmpl-tool-", "functions.look_up:"))
        self.identities.append(f"{kind}{len(self.identities)}")
        function = {"name": name, "arguments": {key: arguments[key] for key in keys}}
        return {"id": self.identities[-1], "type": "function", "function": function, "spelling": spelling}

    def content(self, text: str) -> Content:
        """A text as a string, or as one or two parts."""
        if not self.is_so(0.12):
            return text
        cut = text.rfind(" ") + 1
        return [{"type": "text", "text": part} for part in (text[:cut], text[cut:]) if part]

    def asked(self) -> list[JsonObject]:
        asked = [{"role": "user", "content": self.content(self.texts.brief())}]
        return asked if self.is_so(0.95) else [*asked, {"role": "user", "content": self.texts.prose()}]

    def results(self, calls: Sequence[Call]) -> list[JsonObject]:
        """One result for each of the last calls, mostly in their order."""
        results = [self.result(identity, calls) for identity in self.identities[-len(calls) :]]
        if self.is_so(0.15):
            results.reverse()
        return results[:-1] if len(results) > 1 and self.is_so(0.05) else results

    def result(self, identity: str, calls: Sequence[Call]) -> JsonObject:
        text = self.texts.brief()
        if self.is_so(0.3):
            text += " " + self.texts.repeat([dict(arguments) for _, arguments in calls])
        if self.is_so(0.08):
            text = self.chance.choice(("", "\n", "  "))
        message: JsonObject = {"role": "tool", "tool_call_id": identity, "content": self.content(text)}
        if self.is_so(0.2):
            message["name"] = "look_up"
        return message
