"""Random cases: a conversation, a turn that a model sampled, its echo by a harness, and what came after it."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.model import JsonObject
from tests.joint.engine import Engine, Kind, UnrenderableError
from tests.joint.families import Family, family_of, templates
from tests.joint.styles import Call
from tests.joint.texts import WORD, Literals, Texts
from tests.joint.vocabulary import Vocabulary, vocabulary

Finish = Literal[
    "natural", "length at the end", "length in the answer", "length in reasoning", "length in a call",
    "stop string", "stop string is the end", "stop token", "another end", "end in reasoning",
]  # fmt: skip
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
STOP = "###STOP"
# What requests pass to templates that know the names.
VARIABLES: Mapping[str, tuple[Any, ...]] = {
    "enable_thinking": (True, False),
    "preserve_thinking": (True, False),
    "truncate_history_thinking": (True, False),
    "keep_past_thinking": (True, False),
    "reasoning_effort": ("low", "medium"),
    "low_effort": (True,),
}


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


def make_case(template: str, seed: str, chance: random.Random) -> Case | None:
    """One case; None where the template has no words for the conversation that came out."""
    try:
        return _Maker(template, seed, chance).case()
    except UnrenderableError:
        return None


class _Maker:
    """The choices behind one case."""

    def __init__(self, template: str, seed: str, chance: random.Random) -> None:
        self.template, self.seed, self.chance = template, seed, chance
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

    # --- the conversation -------------------------------------------------------------------------------------

    def case(self) -> Case:
        history = self.history()
        prompt = self.engine.text(spelt(history, None)).rstrip()
        opens, closes = (tag.strip() for tag in self.family.style.think)
        is_open, is_closed = prompt.endswith(opens), prompt.endswith(closes)
        finish = self.finish(may_think=not is_closed)
        calls, reasoning, answer = self.turn(finish)
        reasoning = "" if is_closed else reasoning
        written, echo_answer, whole = self.written(finish, reasoning, answer, calls, is_open=is_open)
        end = self.end(finish, calls)
        echo, calls_told = self.echo(finish, reasoning, echo_answer, calls)
        new = self.after(calls_told)
        messages = (*history, *echo, *new)
        sampled = self.sample(written)
        if finish == "length in the answer" and self.is_so(0.2):
            sampled += self.vocabulary.encode("🦤")[:-1]
        if finish == "stop token":
            sampled += self.vocabulary.encode_plain(" halt")[-1:]
        if end is not None:
            sampled += (self.vocabulary.controls[end],)
        self.engine.text(spelt(messages, None))
        return Case(
            self.template, self.seed, self.engine, messages, len(history), len(history) + len(echo), sampled, end,
            finish, self.finish_reason(finish, calls), self.matched_stop(finish, sampled[-1:], calls),
            self.stops(finish, end, written), has_stop_ids=finish == "stop token" or self.is_so(0.05),
            knows_ends=self.is_so(0.5), reasoning=self.literals.real(reasoning), whole_echo=whole,
            literals=self.literals,
        )  # fmt: skip

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary(self.family.all_controls)

    def history(self) -> list[JsonObject]:
        messages = list[JsonObject]()
        if self.is_so(0.5):
            messages.append({"role": "system", "content": self.content(self.texts.prose())})
        for _ in range(self.chance.choice((0, 0, 1, 2))):
            messages += [*self.asked(), *self.rounds(), self.earlier([])]
            if self.is_so(0.05):
                messages.append({"role": "system", "content": self.texts.prose()})
        return [*messages, *self.asked(), *self.rounds()]

    def asked(self) -> list[JsonObject]:
        asked = [{"role": "user", "content": self.content(self.texts.brief())}]
        return asked if self.is_so(0.95) else [*asked, {"role": "user", "content": self.texts.prose()}]

    def rounds(self) -> list[JsonObject]:
        """Turns of calls with their results."""
        if not self.is_so(0.4 if self.family.has_tools else 0.05):
            return []
        messages = list[JsonObject]()
        for _ in range(self.chance.choice((1, 1, 2))):
            calls = self.calls()
            messages += [self.earlier(calls), *self.results(calls)]
        return messages

    def calls(self) -> list[Call]:
        return [
            (self.chance.choice(("look_up", "write_file")), self.texts.arguments() if self.is_so(0.9) else {})
            for _ in range(self.chance.choice((1, 1, 1, 2, 3)))
        ]

    def earlier(self, calls: Sequence[Call]) -> JsonObject:
        """A turn of the assistant's from before the parent's."""
        answer = "" if calls and self.is_so(0.7) else self.texts.prose()
        (message,) = self.told(self.texts.prose() if self.is_so(0.4) else "", answer, calls)
        return message

    # --- the turn ---------------------------------------------------------------------------------------------

    def finish(self, *, may_think: bool) -> Finish:
        kinds: dict[Finish, int] = {
            "natural": 60, "length at the end": 2, "length in the answer": 10, "length in reasoning": 4,
            "length in a call": 5, "stop string": 5, "stop string is the end": 4, "stop token": 3, "another end": 4,
            "end in reasoning": 3,
        }  # fmt: skip
        able = [kind for kind in kinds if may_think or "in reasoning" not in kind]
        return self.chance.choices(able, weights=[kinds[kind] for kind in able])[0]

    def turn(self, finish: Finish) -> tuple[list[Call], str, str]:
        """Calls, reasoning and answer, each possibly empty."""
        reasoning = self.texts.brief() if self.is_so(0.5) or "reasoning" in finish else ""
        if finish in ("length in the answer", "stop string", "stop token"):
            return [], reasoning, self.texts.brief()
        if "reasoning" in finish:
            return [], reasoning, ""
        wants_calls = finish == "length in a call" or self.is_so(0.45 if self.family.has_tools else 0.1)
        calls = self.calls() if wants_calls else []
        is_silent = self.is_so(0.7) if calls else self.is_so(0.06)
        return calls, reasoning, "" if is_silent else self.texts.brief()

    def written(
        self, finish: Finish, reasoning: str, answer: str, calls: Sequence[Call], *, is_open: bool
    ) -> tuple[str, str, bool]:
        """What was sampled but for its end, the answer as the engine tells it, and whether that is all of it."""
        style = self.family.style
        thought = style.reasoning(reasoning, is_open=is_open) if reasoning or is_open else ""
        match finish:
            case "length in reasoning" | "end in reasoning":
                return thought.removesuffix(style.think[1]), "", False
            case "length in the answer" | "stop token":
                return thought + style.say + answer, answer, True
            case "stop string":
                return thought + style.say + answer + STOP + self.chance.choice(("", "", " on")), answer, True
            case "length in a call":
                said = style.say + answer + style.say_then_call if answer else ""
                block = style.all_calls(calls)
                half = block[: max(len(block) * self.chance.randrange(4, 9) // 10, len("<tool_call>") + 1)]
                half = half[: half.rfind("Zm")] if "Zm" in half[-6:] else half
                half += answer if self.is_so(0.2) else ""  # an argument that begins like the answer
                if self.is_so(0.2):  # a call that no parser understood, and text behind it
                    rest = self.texts.prose()
                    return thought + block + "\n" + rest, rest, True
                if self.is_so(0.5):  # vLLM leaves half a call in the text, SGLang drops it
                    return thought + said + half, self.literals.neutral(answer + half, self.family.all_controls), True
                return thought + said + half, answer, False
            case _:
                return thought + style.answer(answer, calls), answer, True

    def end(self, finish: Finish, calls: Sequence[Call]) -> str | None:
        family = self.family
        if finish in ("length in the answer", "length in reasoning", "length in a call", "stop string", "stop token"):
            return None
        usual = self.chance.choice(family.call_ends) if calls and family.call_ends else family.text_end
        if finish == "another end":
            others = {*family.strays, family.text_end, *family.call_ends, *family.pairs.values()} - {usual}
            return self.chance.choice(sorted(others))
        return usual

    def finish_reason(self, finish: Finish, calls: Sequence[Call]) -> str:
        if finish.startswith("length"):
            return "length"
        return "tool_calls" if calls else "stop"

    def matched_stop(self, finish: Finish, last: tuple[int, ...], calls: Sequence[Call]) -> int | str | None:
        """vLLM names all but the first end token; SGLang names each, but nothing where calls were parsed."""
        if finish.startswith("length") or (self.engine.kind == "sglang" and calls):
            return None
        if finish == "stop string":
            return STOP
        if self.engine.kind == "sglang" and finish == "stop string is the end":
            return self.vocabulary.decode(last)
        is_first = last == (self.vocabulary.controls[self.family.text_end],)
        return None if not last or (self.engine.kind == "vllm" and is_first) else last[0]

    def stops(self, finish: Finish, end: str | None, written: str) -> tuple[str, ...]:
        """Those that ended the turn, and rarely others, which then were not said."""
        if finish == "stop string is the end" and end:
            return (end,)
        unmatched: tuple[str, ...] = self.chance.choice(((),) * 14 + (("\n\n",), (STOP, "\n")))
        unmatched = tuple(stop for stop in unmatched if stop not in written)
        return (STOP, *unmatched) if finish == "stop string" else unmatched

    def sample(self, written: str) -> tuple[int, ...]:
        """Ids as a model might choose them: text split anywhere, markup as control tokens, the talk of it spelt out."""
        ids: tuple[int, ...] = ()
        for piece, is_control in _pieces(written, self.family.all_controls):
            if is_control:
                ids += (self.vocabulary.controls[piece],)
                continue
            if WORD.fullmatch(piece):
                ids += self.vocabulary.encode_plain(self.literals.real(piece))
                continue
            cut = self.chance.randrange(len(piece) + 1)
            ids += self.vocabulary.encode_plain(piece[:cut]) + self.vocabulary.encode_plain(piece[cut:])
        return ids

    # --- what harnesses send back -----------------------------------------------------------------------------

    def echo(
        self, finish: Finish, reasoning: str, answer: str, calls: Sequence[Call]
    ) -> tuple[list[JsonObject], Sequence[Call]]:
        """The messages, and the calls in them."""
        if finish == "length in a call":
            calls = calls[:-1] if self.is_so(0.5) else ()
        elif calls and self.is_so(0.05):  # invalid arguments are echoed as an empty object
            calls = [*calls[:-1], (calls[-1][0], {})]
        # A template that counts messages counts a turn in two pieces twice, which the turn was not.
        if calls and answer and self.is_so(0.15) and self.template != "own_numbered":
            return [*self.told(reasoning, answer, []), *self.told("", "", calls)], calls
        return self.told(reasoning, answer, calls), calls

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

    # --- what is new ------------------------------------------------------------------------------------------

    def after(self, calls: Sequence[Call]) -> list[JsonObject]:
        """Results of calls, a user's words, or both."""
        if calls and self.is_so(0.9):
            results = self.results(calls)
            return [*results, *self.asked()] if self.is_so(0.25) else results
        if self.is_so(0.01):
            return []
        if self.is_so(0.04):
            return [{"role": "system", "content": self.texts.prose()}, *self.asked()]
        if self.is_so(0.03):
            return [*self.asked(), {"role": "assistant", "content": self.texts.prose()}, *self.asked()]
        if self.is_so(0.03):
            return [self.result("call_x", [])]
        if self.is_so(0.03):
            return [{"role": "user", "content": self.chance.choice(("", " ", "\n"))}]
        return self.asked()

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


def _pieces(text: str, controls: Sequence[str]) -> list[tuple[str, bool]]:
    """The text cut at control tokens and neutral words; whether each piece is a control token."""
    longest_first = sorted(controls, key=len, reverse=True)
    splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + "|" + WORD.pattern + ")")
    return [(piece, piece in controls) for piece in splitter.split(text) if piece]
