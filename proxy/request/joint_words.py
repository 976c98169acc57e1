"""Words that take the place of texts in a render, and what is then found around them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.model import JsonObject
from proxy.request.joint_turn import texts_of

# Sentinels are small ASCII letters that end in one of two different ones: such words merge with nothing that templates
# print behind a text, and their ids never share an end.
BASES = ("wxjv", "qzkv", "jxqw", "vqjz", "zxwk")
LAST_LETTERS = ("k", "p")
LEAVES = {"reasoning": "r", "content": "t", "arguments": "a"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Words:
    """Words that do not occur in a request: sentinels, and stand-ins for new texts."""

    base: str

    @staticmethod
    def unused_in(messages: Sequence[JsonObject]) -> "Words | None":
        told = json.dumps(messages).lower()
        return next((Words(base) for base in BASES if base not in told), None)

    def sentinel(self, leaf: str, letter: int) -> str:
        return self.base + LEAVES[leaf] + LAST_LETTERS[letter]

    def text(self, number: int) -> str:
        """Stand-in for the new text of this number; all have one length."""
        digits = [LETTERS[number // 26**place % 26] for place in (2, 1, 0)]
        return self.base + "x" + "".join(digits)

    def replaced(self, messages: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
        """The messages, a word of its own for each of their texts."""
        numbers = iter(range(26**3))
        return tuple(self._replaced(message, numbers) for message in messages)

    def _replaced(self, message: JsonObject, numbers: Iterator[int]) -> JsonObject:
        content = message.get("content")
        if isinstance(content, list) and content:
            return {**message, "content": [{**part, "text": self.text(next(numbers))} for part in content]}
        return {**message, "content": self.text(next(numbers))}

    def behind_last(self, text: str, letter: int) -> str | None:
        """What stands behind the last sentinel in a text; None where there is none."""
        ends = [text.rfind(self.sentinel(leaf, letter)) for leaf in LEAVES]
        place = max(ends)
        return text[place + len(self.sentinel("content", letter)) :] if place >= 0 else None

    def pieces(self, pattern: str, new: Sequence[JsonObject]) -> list[str] | None:
        """The template's own text around the words; None unless each stands there once, in order."""
        pieces, rest = list[str](), pattern
        for number, _text in enumerate(texts_of(new)):
            piece, found, rest = rest.partition(self.text(number))
            if not found:
                return None
            pieces.append(piece)
        pieces.append(rest)
        return None if any(self.base in piece for piece in pieces) else pieces


def filled(text: str, pieces: Sequence[str], choices: Sequence[Sequence[str]]) -> bool:
    """Whether a text is the pieces with one of the choices between each two."""
    places = {len(pieces[0])} if text.startswith(pieces[0]) else set[int]()
    for piece, forms_of_one in zip(pieces[1:], choices, strict=True):
        places = {
            place + len(form) + len(piece)
            for place in places
            for form in forms_of_one
            if text.startswith(form + piece, place)
        }
    return len(text) in places


def text_forms(text: str) -> tuple[str, ...]:
    """How templates print a text: as it is, trimmed, or as JSON; a blank one possibly not at all."""
    trimmed = (text, text.strip(), text.lstrip(), text.rstrip())
    printed = [*trimmed]
    for form in trimmed:
        printed += [json.dumps(form, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)]
    return tuple(dict.fromkeys(printed))
