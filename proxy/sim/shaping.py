"""From logits to what is drawn: penalties, bias, temperature, filters, and the logprobs that are reported."""

import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from proxy.noise import pick
from proxy.sim.tokens import VOCABULARY_SIZE

# Logit of whatever the model would not say: e**-40 is never drawn at sane temperatures, yet is a true probability.
FLOOR = -40.0
# Logit of what may not come at all.
BANNED = -1e30


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings that were in effect, whoever chose them."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    in_ranks: bool = False
    """The batch is drawn by ranks because another call in it filters."""

    @property
    def filters(self) -> bool:
        """Some tokens are left out: the noise then hangs on a token's rank, as it does on SGLang."""
        return self.top_p < 1 or 0 < self.top_k < VOCABULARY_SIZE or self.min_p > 0

    @property
    def ranks_its_batch(self) -> bool:
        """A deterministic SGLang draws all calls beside this one by ranks; greedy is its top-k of 1."""
        return self.filters or self.temperature == 0

    @property
    def penalises(self) -> bool:
        """What has been said becomes less likely."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Manner:
    """How one kind of engine draws."""

    by_position: bool
    """Noise hangs on the absolute position, so a prompt with the first tokens appended goes on as before."""
    raw_logprobs: bool
    """Reported logprobs are those of the bare logits, before penalties, bias and temperature."""
    penalises_prompt: bool
    """The repetition penalty counts the prompt's tokens too."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The next token's distribution."""

    sampled: Sequence[float]
    """Logprobs that the draw is made from, before any filter, one per id."""
    reported: Sequence[float]
    """Logprobs as the engine tells them."""

    def logprob(self, token_id: int) -> float:
        """The logprob told of a token: a number that a 32-bit float holds exactly."""
        return single(self.reported[token_id])

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The likeliest tokens, by what is told of them."""
        ranked = ranking(self.reported)[:count]
        return tuple((i, self.logprob(i)) for i in ranked if self.reported[i] > BANNED / 2)


def single(value: float) -> float:
    """The nearest 32-bit float, which is what engines report."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def log_softmax(logits: Sequence[float]) -> list[float]:
    """Logprobs of logits."""
    highest = max(logits)
    total = highest + math.log(math.fsum(math.exp(x - highest) for x in logits))
    return [x - total for x in logits]


def ranking(logprobs: Sequence[float]) -> list[int]:
    """Ids from the likeliest on; equals in order of their ids."""
    return sorted(range(len(logprobs)), key=lambda i: (-logprobs[i], i))


def distribution(
    likely: Mapping[int, float], sampling: Sampling, said: Mapping[int, int], manner: Manner, banned: Sequence[int] = ()
) -> Distribution:
    """What the settings make of a model's logits, given how often each token has been said."""
    bare = [FLOOR] * VOCABULARY_SIZE
    for token_id, logit in likely.items():
        bare[token_id] = logit
    for token_id in banned:
        bare[token_id] = BANNED
    shaped = _biased(_penalised(bare, sampling, said), sampling)
    heat = sampling.temperature or 1.0
    sampled = log_softmax(shaped if heat == 1.0 else [x / heat for x in shaped])
    if not manner.raw_logprobs or (shaped is bare and heat == 1.0):
        return Distribution(sampled, sampled)
    return Distribution(sampled, log_softmax(bare))


def _penalised(bare: list[float], sampling: Sampling, said: Mapping[int, int]) -> list[float]:
    if not sampling.penalises:
        return bare
    shaped = list(bare)
    for token_id, times in said.items():
        logit, factor = shaped[token_id], sampling.repetition_penalty
        shaped[token_id] = logit / factor if logit > 0 else logit * factor
        if times > 0:
            shaped[token_id] -= sampling.presence_penalty + times * sampling.frequency_penalty
    return shaped


def _biased(shaped: list[float], sampling: Sampling) -> list[float]:
    if not sampling.logit_bias:
        return shaped
    shaped = list(shaped)
    for token_id, bias in sampling.logit_bias:
        shaped[token_id] += bias
    return shaped


def first_counts(prompt: Sequence[int], manner: Manner) -> Counter[int]:
    """What counts as said when the reply begins; a prompt's tokens are known, but said no times."""
    return Counter(dict.fromkeys(prompt, 0)) if manner.penalises_prompt else Counter()


def choose(logprobs: Sequence[float], sampling: Sampling, seed: int, position: int) -> int:
    """Draw one id: by its own column, or by its rank among those that the filters leave."""
    if sampling.temperature == 0:
        return logprobs.index(max(logprobs))
    if not (sampling.filters or sampling.in_ranks):
        return pick(logprobs, seed, position)
    ranked = ranking(logprobs)
    return ranked[pick(_kept([logprobs[i] for i in ranked], sampling), seed, position)]


def _kept(ranked: Sequence[float], sampling: Sampling) -> list[float]:
    """The leading logprobs that pass top-k, top-p and min-p."""
    most = sampling.top_k if sampling.top_k > 0 else len(ranked)
    probabilities = [math.exp(x) for x in ranked[:most]]
    least = probabilities[0] * sampling.min_p
    before = accumulate(probabilities, initial=0.0)
    passing = [
        place == 0 or (mass <= sampling.top_p and p >= least)
        for place, (p, mass) in enumerate(zip(probabilities, before, strict=False))
    ]
    return [x for x, passes in zip(ranked, passing, strict=False) if passes]
