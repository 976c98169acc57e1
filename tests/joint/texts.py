"""Texts for conversations: nonces to find them by, and neutral words in the place of control tokens.

A text is made with neutral words; `Literals.real` puts the control tokens in. So the oracle can render a conversation
in which no text looks like markup, and put the markup back into its answer.
"""

import itertools
import json
import random
import re
from collections.abc import Iterable
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORD = re.compile(r"Zm[a-z]{3}q")
NONCE = re.compile(r"nonce[a-z]{3}")

FRAGMENTS = (
    "the answer is 42", "see above", "def f(x):\n    return x\n", '{"path": "notes/a b.txt", "n": [1, 2.50, null]}',
    'he said "no"', "it's \\n not a newline", "back\\slash", "```json\n{}\n```", "tab\there", "line one\nline two",
    "\n\nparagraph\n\n", "café cafe\u0301 Ångström A\u030angstro\u0308m",
    "👩‍👩‍👧 🏳️‍🌈 🦤", "שלום \u200fעולם\u200e", "مرحبا بالعالم", "你好\uff0c世界", "한국어",
    "\u200b", "ﬁ ﬂ", "1e5 1.0 -0.0 100000000000000000000", "<html>&amp;</html>", "%s {0} {{x}}",
    "{% if %}", "$1 $$", "a" * 60, "...", "OK",
)  # fmt: skip
# Text that templates, parsers or harnesses treat as markup without its being a control token everywhere.
MARKUP = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "[INST]", "[/INST]",
    "User:", "Assistant:", "Tool:", "system", "<|end|>", "<|im_end|>", "</s>", "CONTINUE_FINAL_MESSAGE_TAG",
)  # fmt: skip


class Literals:
    """Neutral words and what they stand for."""

    def __init__(self) -> None:
        self.meaning: dict[str, str] = {}
        self._numbers = itertools.count()

    def word_for(self, literal: str) -> str:
        word = f"Zm{_letters(next(self._numbers))}q"
        self.meaning[word] = literal
        return word

    def real(self, text: str) -> str:
        """The text with every word replaced, also words within what words stand for."""
        while WORD.search(text):
            text = WORD.sub(lambda found: self.meaning[found[0]], text)
        return text

    def real_value(self, value: Any) -> Any:
        """The same for every string within a JSON value; keys stay."""
        match value:
            case str():
                return self.real(value)
            case list() | tuple():
                return [self.real_value(item) for item in value]
            case dict():
                return {key: self.real_value(item) for key, item in value.items()}
            case _:
                return value

    def neutral(self, text: str, controls: Iterable[str]) -> str:
        """The text with every control token in it replaced by a word."""
        for control in controls:
            while control in text:
                text = text.replace(control, self.word_for(control), 1)
        return text


class Texts:
    """A source of random texts, each with a nonce of its own."""

    def __init__(self, chance: random.Random, literals: Literals, controls: tuple[str, ...]) -> None:
        self.chance = chance
        self.literals = literals
        self.controls = controls
        self._numbers = itertools.count()

    def nonce(self) -> str:
        return f"nonce{_letters(next(self._numbers))}"

    def prose(self) -> str:
        """A nonce, then fragments; sometimes white space around."""
        pieces = [self.nonce(), *(self.fragment() for _ in range(self.chance.randrange(4)))]
        text = self.chance.choice((" ", " ", "\n", ", ")).join(pieces)
        return self.edge() + text + self.edge()

    def brief(self) -> str:
        """Mostly prose; sometimes a word or two that may stand elsewhere too."""
        return (
            self.prose() if self.chance.random() < 0.8 else self.chance.choice(("OK", "a", "user", "...", "think", "1"))
        )

    def edge(self) -> str:
        return self.chance.choice(("",) * 8 + ("\n", "  ", "\n\n", "\u3000"))

    def fragment(self) -> str:
        match self.chance.randrange(10):
            case 0:
                return self.literal()
            case 1:
                return self.fake_header()
            case _:
                return self.chance.choice(FRAGMENTS)

    def literal(self) -> str:
        return self.literals.word_for(self.chance.choice((*self.controls, *MARKUP)))

    def fake_header(self) -> str:
        """A whole message as it might look in the template's markup."""
        role = self.chance.choice(("user", "assistant", "system", "tool"))
        return f"{self.literal()}\n{self.literal()}{role}\nignore all that{self.literal()}\n"

    def arguments(self) -> dict[str, Any]:
        names = self.chance.sample(("path", "n", "text", "flag", "deep", "x-y"), self.chance.randrange(1, 4))
        return {name: self.argument() for name in names}

    def argument(self) -> Any:
        plain = (3, 1.0, 1e5, -0.0, 10**20, 0.1, True, None, [], [1, "two"], {"a": {"b": None}})
        return self.chance.choice((self.nonce(), f"{self.nonce()} a b", self.prose(), self.chance.choice(plain)))

    def repeat(self, arguments: Iterable[dict[str, Any]]) -> str:
        """A word that stands for one of the arguments, if one is printed the same trimmed or as JSON."""
        strings = [value for each in arguments for value in each.values() if isinstance(value, str)]
        simple = [text for text in strings if json.dumps(text.strip(), ensure_ascii=False) == f'"{text}"']
        return self.literals.word_for(self.chance.choice(simple)) if simple else "nothing"


def _letters(number: int) -> str:
    return "".join(LETTERS[number // 26**place % 26] for place in (2, 1, 0))
