"""Who speaks: each voice says which tokens are likely next, given everything printed in the turn so far.

What is likely hangs on the tokens alone and never on a seed, so a reply that is cut off and resumed goes on the same.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from proxy.sim.tokens import THINK_END, THINK_START, TURN_END, encode
from proxy.sim.words import END, FOLLOWS, KINDS

Finish = Literal["stop", "length", "abort"]

WORD64 = (1 << 64) - 1
# How far the context moves a word's logit from its plain weight, up or down.
MOOD = 1.5
# A thought is shorter than what is said after it.
BREVITY = 4
# Logits of what might have stood in a scripted token's place.
RIVALS = b"aeinorst"


class Voice(Protocol):
    """A model in the middle of a turn."""

    def likely(self, *, may_end: bool) -> Mapping[int, float]:
        """Logits of the tokens that may come next; all others are far below."""
        ...

    def feed(self, token_id: int) -> None:
        """This token has been printed."""
        ...


def mix(*parts: int) -> int:
    """A well stirred 64-bit number (the finaliser of splitmix64, folded over the parts)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & WORD64)) * 0xBF58476D1CE4E5B9 & WORD64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & WORD64
        state ^= state >> 31
    return state


def fold(values: Iterable[int], state: int = 0xCBF29CE484222325) -> int:
    """A running hash of ids."""
    for value in values:
        state = (state * 0x100000001B3 ^ (value + 1)) & WORD64
    return state


def spread(*parts: int) -> float:
    """A number from 0 to 1 that the parts decide."""
    return mix(*parts) / WORD64


class Chatter:
    """The toy model's own words: short sentences, a thought first where thinking is on."""

    def __init__(self, context: int, *, thinks: bool) -> None:
        self._context, self._thinking = context, thinks
        self._is_unopened, self._is_first, self._previous = thinks, True, 0
        self._rest: dict[tuple[int, ...], tuple[str, float]] = {}
        self._begin(END)

    def likely(self, *, may_end: bool) -> Mapping[int, float]:
        """First tokens of the words that fit what has been printed of the next one."""
        if self._is_unopened:
            return {THINK_START: 0.0}
        weights: dict[int, float] = {}
        for rest, (_, weight) in self._rest.items():
            if may_end or rest[0] != TURN_END:
                weights[rest[0]] = weights.get(rest[0], 0.0) + weight
        return {token_id: math.log(weight) for token_id, weight in weights.items()}

    def feed(self, token_id: int) -> None:
        """Go on in the words that fit; begin anew where none does."""
        opens, self._is_unopened = token_id == THINK_START and self._is_unopened, False
        if opens:
            return
        if token_id == THINK_END and self._thinking:
            self._thinking, self._is_first = False, True
            self._begin(END)
            return
        fitting = {rest[1:]: word for rest, word in self._rest.items() if rest[0] == token_id}
        whole = fitting.get(())
        if whole is not None:
            self._is_first = False
            self._previous = fold((self._previous, token_id))
            self._begin(whole[0])
        elif fitting:
            self._rest = fitting
        else:
            self._begin(END)

    def _begin(self, kind: str) -> None:
        """A word of this kind has been said; find what may follow."""
        self._rest = {}
        for ids, next_kind, weight in self._following(kind):
            mood = MOOD * (2 * spread(self._context, self._previous, fold(ids)) - 1)
            self._rest[ids] = (next_kind, weight * math.exp(mood))

    def _following(self, kind: str) -> Iterator[tuple[tuple[int, ...], str, float]]:
        for next_kind, weight in FOLLOWS[kind].items():
            if next_kind == END:
                yield (THINK_END,) if self._thinking else (TURN_END,), END, weight * (BREVITY if self._thinking else 1)
                continue
            words = KINDS[next_kind]
            for word in words:
                yield encode(word if self._is_first else " " + word), next_kind, weight / len(words)


class Recital:
    """One of several prepared turns, after a thought of its own where thinking is on; the draw decides which."""

    def __init__(self, turns: Sequence[tuple[int, ...]], chatter: Chatter, *, thinks: bool) -> None:
        self._left, self._place = list(turns), 0
        self._otherwise, self._is_thinking = chatter, thinks

    def likely(self, *, may_end: bool) -> Mapping[int, float]:
        """The next token of each turn that is still possible, by how many agree; the fallback where none is."""
        if self._is_thinking:
            return self._otherwise.likely(may_end=may_end)
        counts: dict[int, int] = {}
        for turn in self._left:
            token_id = turn[self._place]
            if may_end or token_id != TURN_END:
                counts[token_id] = counts.get(token_id, 0) + 1
        if not counts:
            return self._otherwise.likely(may_end=may_end)
        return {token_id: math.log(count / len(self._left)) for token_id, count in counts.items()}

    def feed(self, token_id: int) -> None:
        """Drop the turns that have something else here."""
        self._otherwise.feed(token_id)
        if self._is_thinking:
            self._is_thinking = token_id != THINK_END
            return
        place = self._place
        self._left = [t for t in self._left if len(t) > place + 1 and t[place] == token_id]
        self._place += 1


class Dictation:
    """Scripted words: each is one of several likely tokens, and is said whatever the dice show."""

    def __init__(self, context: int, ids: Sequence[int], finish: Finish) -> None:
        self.ids, self.finish = ids, finish
        self._context, self._place = context, 0

    def likely(self, *, may_end: bool) -> Mapping[int, float]:  # noqa: ARG002  it ends where the script does
        """The scripted token and some rivals, so that every logprob is another."""
        wanted, place = self.ids[self._place], self._place
        rivals = {rival: -4 * spread(self._context, place, rival) for rival in RIVALS}
        return rivals | {wanted: 1 + spread(self._context, place, wanted)}

    def feed(self, token_id: int) -> None:  # noqa: ARG002  whatever was drawn, the script goes on
        """On to the next."""
        self._place += 1
