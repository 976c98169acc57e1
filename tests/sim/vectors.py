"""Golden vectors: what SGLang 0.5.23's own sampling functions drew, in a compact form."""

import base64
import json
import math
import struct
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("sglang_seed_vectors.json").read_text())
LOGITS = [[-math.inf if x is None else x for x in row] for row in VECTORS["logits"]]


def drawn(table: dict[str, Any], tokens: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """(row of logits, seed, position, token) of every draw: a digit stands for each, seeds outside of positions."""
    for row, digits in enumerate(tokens):
        places = product(table["seeds"], table["positions"])
        yield from ((row, seed, position, int(digit)) for (seed, position), digit in zip(places, digits, strict=True))


def sequence_logits() -> Iterator[tuple[float, ...]]:
    """The logits of each step of the sequence."""
    packed = base64.b64decode(VECTORS["sequence"]["float32"])
    yield from struct.iter_unpack(f"<{VECTORS['sequence']['columns']}f", packed)
