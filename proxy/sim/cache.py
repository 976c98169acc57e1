"""The prefix cache: beginnings of prompts under the salt they came with, and the weights that computed them.

A prompt whose beginning is found there is answered on what other weights computed, if those are others by now; nothing
in the reply tells. So it is with the real engines, which is why callers salt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.sim.ask import Ask

BLOCK = 8
"""Beginnings are found from this many equal tokens on."""
MOST_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """What one call left behind."""

    salt: str | None
    ids: tuple[int, ...]
    weights: str


class PrefixCache:
    """Entries of one engine, the newest last."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def keep(self, ask: Ask, drawn: Sequence[int], weights: str) -> None:
        """A call has ended; what it computed stays."""
        self._entries.append(Entry(_salt(ask), (*ask.prompt, *drawn), weights))
        del self._entries[:-MOST_ENTRIES]

    def met(self, ask: Ask, weights: str) -> str:
        """Who speaks to a prompt: the weights of now, or a mixture with those that computed its beginning."""
        start = ask.prompt[:BLOCK]
        for entry in reversed(self._entries):
            if len(start) == BLOCK and entry.salt == _salt(ask) and entry.ids[:BLOCK] == start:
                return weights if entry.weights == weights else mixture(entry.weights, weights)
        return weights

    def flush(self) -> None:
        self._entries.clear()


def mixture(cached: str, weights: str) -> str:
    """A name for weights that go on from a cache of others."""
    return f"{cached}>{weights}"


def _salt(ask: Ask) -> str | None:
    salt: str | None = ask.body.get("cache_salt")
    return salt
