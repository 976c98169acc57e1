"""Logprobs of given ids, as engines tell them of a prompt: the toy model reads the last turn, place by place.

What stands before that turn has no distribution here, and is told as certain.
"""

from collections.abc import Sequence

from proxy.sim.draw import EMPTY_THOUGHT, turn_start
from proxy.sim.shaping import Manner, Sampling, distribution
from proxy.sim.voices import Chatter, fold

CERTAIN = 0.0
# Of the bare distribution every engine tells the same.
BARE = Manner(by_position=False, raw_logprobs=True, penalises_prompt=False)


def score(ids: Sequence[int], model: str) -> list[float]:
    """A logprob for each id, of the bare distribution."""
    start = turn_start(ids)
    voice = Chatter(
        fold(ids[:start], fold(model.encode())), thinks=tuple(ids[start - len(EMPTY_THOUGHT) : start]) != EMPTY_THOUGHT
    )
    scores = [CERTAIN] * start
    for token_id in ids[start:]:
        scores.append(distribution(voice.likely(may_end=True), Sampling(), {}, BARE).logprob(token_id))
        voice.feed(token_id)
    return scores
