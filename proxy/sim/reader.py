"""What an engine's parsers make of the printed tokens: reasoning, words and tool calls, piece by piece."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from proxy.sim.draw import Completion
from proxy.sim.tokens import CALL_END, CALL_START, THINK_END, THINK_START, pieces, token_bytes

_HEAD = re.compile(r'\s*\{\s*"name":\s*("(?:[^"\\]|\\.)*"),\s*"arguments":\s*')


@dataclass(frozen=True, slots=True)
class Delta:
    """One addition to the message. A `call` carries the tool's name and opens it, `arguments` extend it."""

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Parsing:
    """Which parsers are at work on a reply."""

    thinking: bool
    """Everything is reasoning until the thought is closed; decided by the request, not by the prompt's ids."""
    tools: bool
    is_on: bool = True
    """The server has parsers at all."""


@dataclass(frozen=True, slots=True)
class Message:
    """A whole reply, parsed."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    half_call: str
    """What was printed of a call that was never closed."""
    reasoning_tokens: int


class ReplyReader:
    """Takes one token at a time and says what it adds to the message."""

    def __init__(self, parsing: Parsing) -> None:
        self._tools = parsing.tools
        self._mode = "reasoning" if parsing.thinking else "content"
        self._inner, self._sent, self._named = "", 0, False
        self._index = -1
        self.half_call = ""
        self.reasoning_tokens = 0

    def feed(self, token_id: int, piece: str) -> Iterator[Delta]:
        """Read one token and the text it adds."""
        if self._mode == "reasoning":
            yield from self._reason(token_id, piece)
        elif self._mode == "call":
            yield from self._call(token_id, piece)
        elif self._tools and token_id == CALL_START:
            self._mode, self._inner, self._sent, self._named = "call", "", 0, False
            self.half_call = _markup(token_id)
            if before := piece.removesuffix(self.half_call):
                yield Delta("content", before)
        elif piece and not (self._index >= 0 and piece.isspace()):
            yield Delta("content", piece)

    def _reason(self, token_id: int, piece: str) -> Iterator[Delta]:
        self.reasoning_tokens += 1
        if token_id in (THINK_START, THINK_END):
            piece = piece.removesuffix(_markup(token_id))
        if token_id == THINK_END:
            self._mode = "content"
        if piece:
            yield Delta("reasoning", piece)

    def cut(self, tail: str) -> Iterator[Delta]:
        """What an abort adds on SGLang: the text that was waited with, and what closes the arguments of half a call."""
        if self._mode == "call":
            self._inner += tail
            head = _HEAD.match(self._inner)
            if self._named and head and self._sent:
                written = self._inner[head.end() :]
                yield Delta("arguments", written[self._sent :] + closing(written), self._index)
        elif tail:
            yield Delta("reasoning" if self._mode == "reasoning" else "content", tail)

    def _call(self, token_id: int, piece: str) -> Iterator[Delta]:
        ends = token_id == CALL_END
        self.half_call = "" if ends else self.half_call + piece
        self._inner += "" if ends else piece
        head = _HEAD.match(self._inner)
        if head and not self._named:
            self._named = True
            self._index += 1
            yield Delta("call", json.loads(head[1]), self._index)
        if head:
            written = self._inner[head.end() :].rstrip()
            written = written.removesuffix("}").rstrip()
            if len(written) > self._sent:
                yield Delta("arguments", written[self._sent :], self._index)
                self._sent = len(written)
        if ends:
            self._mode = "content"


def closing(written: str) -> str:
    """What makes JSON of the beginning of a JSON object."""
    ends, is_text, is_escaped = list[str](), False, False
    for letter in written:
        if is_text:
            is_text = is_escaped or letter != '"'
            is_escaped = letter == "\\" and not is_escaped
        elif letter == '"':
            is_text = True
        elif letter in "{[":
            ends.append("}" if letter == "{" else "]")
        elif letter in "}]" and ends:
            ends.pop()
    return ('"' if is_text else "") + "".join(reversed(ends))


def _markup(token_id: int) -> str:
    return token_bytes(token_id).decode()


def printed_pieces(completion: Completion, *, keep_tail: bool) -> tuple[str, ...]:
    """The text each token adds, up to a stop string, without the end token."""
    texts = list(pieces(completion.printed(), keep_tail=keep_tail))
    if isinstance(completion.matched, str):
        left = "".join(texts).find(completion.matched)
        for place, text in enumerate(texts):
            texts[place] = text[:left]
            left -= len(texts[place])
    return (*texts, *("" for _ in range(len(completion.ids) - len(texts))))


def read_message(completion: Completion, parsing: Parsing, *, keep_tail: bool) -> Message:
    """The whole reply at once."""
    reader = ReplyReader(parsing)
    deltas: list[Delta] = []
    for token_id, piece in zip(completion.ids, printed_pieces(completion, keep_tail=keep_tail), strict=True):
        deltas.extend(reader.feed(token_id, piece))
    calls = [(d.text, _joined(deltas, "arguments", d.index)) for d in deltas if d.kind == "call"]
    if reader.half_call and _HEAD.match(reader.half_call.removeprefix("<tool_call>")):
        calls.pop()
    reasoning, content = _joined(deltas, "reasoning"), _joined(deltas, "content")
    return Message(reasoning, content, tuple(calls), reader.half_call, reader.reasoning_tokens)


def _joined(deltas: Iterable[Delta], kind: str, index: int = 0) -> str:
    return "".join(d.text for d in deltas if d.kind == kind and d.index == index)


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbouring additions of one kind as one."""
    result: list[Delta] = []
    for delta in deltas:
        previous = result[-1] if result else None
        extends = previous is not None and delta.kind != "call"
        if extends and previous and (previous.kind, previous.index) == (delta.kind, delta.index):
            result[-1] = Delta(delta.kind, previous.text + delta.text, delta.index)
        else:
            result.append(delta)
    return result
