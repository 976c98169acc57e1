"""Seeded randomness as SGLang's deterministic mode has it (seen on 0.5.23), token for token.

The simulated engine draws with it, and the seed audit holds recorded tokens against it.

A draw hangs on nothing but seed, position and column: murmur3 over the seed's two words, the position and the column
gives a number, the number Gumbel noise, and the highest logprob plus noise wins. So a sequence can be resumed anywhere.
"""

import math
from collections.abc import Sequence

WORD = 0xFFFFFFFF
# -ln of the least value that SGLang lets through: no column's noise is higher.
HIGHEST_NOISE = 32 * math.log(2)
_LEAST = -(2.0**-32)
_LOWEST = -1.7976931348623157e308


def seeded_state(seed: int, position: int) -> int:
    """What the columns of one position have in common; the seed is a signed or unsigned 64-bit number."""
    state = _stir(0, seed & WORD)
    state = _stir(state, (seed >> 32) & WORD)
    return _stir(state, position & WORD)


def column_hash(state: int, column: int) -> int:
    """The 32-bit hash of one column."""
    h = _stir(state, column & WORD) ^ 16
    h ^= h >> 16
    h = h * 0x85EBCA6B & WORD
    h ^= h >> 13
    h = h * 0xC2B2AE35 & WORD
    return h ^ (h >> 16)


def _stir(h: int, word: int) -> int:
    word = word * 0xCC9E2D51 & WORD
    word = ((word << 15) | (word >> 17)) & WORD
    h ^= word * 0x1B873593 & WORD
    h = ((h << 13) | (h >> 19)) & WORD
    return (h * 5 + 0xE6546B64) & WORD


def gumbel(hashed: int) -> float:
    """The noise that a hash stands for."""
    x = hashed / 4294967295
    lx = math.log(x) if x > 0 else _LOWEST
    return -math.log(-min(max(lx, _LOWEST), _LEAST))


def pick(logprobs: Sequence[float], seed: int, position: int) -> int:
    """The column drawn: the highest logprob with noise, the first of equals.

    Columns are tried from the likeliest on, and none that the highest noise could not save: the result is exact.
    """
    state, chosen, best = seeded_state(seed, position), -1, -math.inf
    for column in sorted(range(len(logprobs)), key=logprobs.__getitem__, reverse=True):
        if logprobs[column] + HIGHEST_NOISE < best:
            break
        score = logprobs[column] + gumbel(column_hash(state, column))
        if score > best or (score == best and column < chosen):
            chosen, best = column, score
    return chosen
