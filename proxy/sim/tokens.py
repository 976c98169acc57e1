"""The toy vocabulary: one id per byte, then markup ids, then padding that stands for nothing."""

import re
from collections.abc import Iterable, Sequence

VOCABULARY_SIZE = 300
MARKUP = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
MARKUP_IDS = {text: 256 + place for place, text in enumerate(MARKUP)}
END_OF_TEXT, TURN_START, TURN_END, THINK_START, THINK_END, CALL_START, CALL_END = range(256, 263)
SPECIAL_IDS = frozenset({END_OF_TEXT, TURN_START, TURN_END})
"""What a tokenizer leaves out when asked to skip special tokens: the thinking and call markup stays."""
NO_CHARACTER = "\ufffd"

_PIECES = re.compile("(" + "|".join(map(re.escape, MARKUP)) + ")")


def encode(text: str) -> tuple[int, ...]:
    """Ids of a text; markup written out in it becomes the markup's id, as real chat tokenizers do."""
    ids: list[int] = []
    for piece in _PIECES.split(text):
        ids.extend((MARKUP_IDS[piece],) if piece in MARKUP_IDS else _bytes_of(piece))
    return tuple(ids)


def _bytes_of(text: str) -> bytes:
    """UTF-8; bytes that are none are written as Python's `surrogateescape` writes them."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def token_bytes(token_id: int) -> bytes:
    """What one id prints; the padding ids print nothing."""
    if token_id < 256:
        return bytes((token_id,))
    place = token_id - 256
    return MARKUP[place].encode() if place < len(MARKUP) else b""


def decode(ids: Iterable[int], *, skip_special: bool = False) -> str:
    """Text of ids, with a replacement character for bytes that are no UTF-8."""
    kept = (token_bytes(i) for i in ids if not (skip_special and i in SPECIAL_IDS))
    return b"".join(kept).decode(errors="replace")


def pieces(ids: Sequence[int], *, keep_tail: bool) -> tuple[str, ...]:
    """What each id adds to the text: nothing while it ends in what may yet become a character, then all of it.

    `keep_tail` has the last id add what was still waited with, as U+FFFD; else that is left out.
    """
    told, start = list[str](), 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])
        waits = text.endswith(NO_CHARACTER) and not (keep_tail and end == len(ids))
        told.append("" if waits else text)
        start = start if waits else end
    return tuple(told)
