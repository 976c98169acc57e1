"""The toy vocabulary: one id per byte, then markup ids, then padding that stands for nothing."""

import codecs
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

_PIECES = re.compile("(" + "|".join(map(re.escape, MARKUP)) + ")")


def encode(text: str) -> tuple[int, ...]:
    """Ids of a text; markup written out in it becomes the markup's id, as real chat tokenizers do."""
    ids: list[int] = []
    for piece in _PIECES.split(text):
        ids.extend((MARKUP_IDS[piece],) if piece in MARKUP_IDS else piece.encode(errors="replace"))
    return tuple(ids)


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
    """What each id adds to the text: nothing while a character is incomplete, all of it when it is whole.

    `keep_tail` shows an unfinished last character as a replacement character instead of leaving it out.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    last = len(ids) - 1
    return tuple(
        decoder.decode(token_bytes(token_id), final=keep_tail and place == last) for place, token_id in enumerate(ids)
    )
