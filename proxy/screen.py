"""Sentences for people on standard error: one line each; on a terminal folded between words instead of within them."""

import os
import sys
from textwrap import wrap

NARROWEST = 20
USUAL_WIDTH = 80


def say(sentence: str) -> None:
    """`rollpin: SENTENCE`."""
    tell(f"rollpin: {sentence}")


def tell(line: str) -> None:
    """A line as it is."""
    sys.stderr.write((folded(line, _width()) if sys.stderr.isatty() else line) + "\n")


def folded(line: str, width: int) -> str:
    """A line that fits, but for words that do not: addresses and paths are copied, so none is cut."""
    parts = line.splitlines() or [""]
    return "\n".join(
        piece for part in parts for piece in wrap(part, width, break_long_words=False, break_on_hyphens=False) or [""]
    )


def _width() -> int:
    try:
        return max(NARROWEST, os.get_terminal_size(sys.stderr.fileno()).columns)
    except OSError:
        return USUAL_WIDTH
