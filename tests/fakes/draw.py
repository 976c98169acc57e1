"""The toy sampler: every token is a hash of the seed, the sampling settings and the place in the text.

Changing any sampling setting changes the tokens, so a setting that leaks in or gets lost shows at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.fakes.tokens import THINK_END, TURN_END, TURN_START, VOCABULARY_SIZE, decode, encode

Finish = Literal["stop", "length", "abort"]

MASK = (1 << 64) - 1
LETTERS = b"etaoinshrdlucmfwypbgvk"
LEAD_BYTE = 0xC3
"""First byte of the accented Latin letters: now and then a token that adds no text by itself."""
FORCING_BIAS = 50.0
"""A logit bias this high leaves the token no competitor."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The settings that were in effect, whoever chose them."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...] = ()

    def digest(self) -> int:
        """One number that differs when any setting does; `top_k` 0 and -1 both mean all."""
        key = repr(
            (
                *(float(x) for x in (self.temperature, self.top_p, self.min_p, self.repetition_penalty)),
                *(float(x) for x in (self.presence_penalty, self.frequency_penalty)),
                max(self.top_k, 0),
                self.logit_bias,
            )
        )
        return fold(key.encode())

    def forced(self) -> tuple[int, ...]:
        """The tokens a strong bias leaves to choose from."""
        return tuple(token_id for token_id, bias in self.logit_bias if bias >= FORCING_BIAS)


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a reply."""

    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Noise:
    """The randomness of one choice."""

    seed: int
    sampling: Sampling
    resumes: bool
    """Noise hangs on the absolute position, so a prompt with the first tokens appended goes on as before."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model printed for one choice."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    matched: int | str | None = None
    """The end token or stop string that ended it."""

    def cut(self, tokens: int, finish: Finish) -> "Completion":
        """The first tokens of it, ended from outside."""
        return Completion(self.ids[:tokens], self.logprobs[:tokens], finish)

    def printed(self) -> tuple[int, ...]:
        """The ids that become text: without the end token that was matched."""
        ends = bool(self.ids) and self.finish == "stop" and self.matched == self.ids[-1]
        return self.ids[:-1] if ends else self.ids


def mix(*parts: int) -> int:
    """A well stirred 64-bit number (the finaliser of splitmix64, folded over the parts)."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & MASK)) * 0xBF58476D1CE4E5B9 & MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
        state ^= state >> 31
    return state


def fold(values: Sequence[int], state: int = 0xCBF29CE484222325) -> int:
    """A running hash of ids, which can be carried on one id at a time."""
    for value in values:
        state = (state * 0x100000001B3 ^ (value + 1)) & MASK
    return state


def turn_start(prompt: Sequence[int]) -> int:
    """Where the assistant's own words begin in a prompt, past the header and an empty thought."""
    headers = [place for place, token_id in enumerate(prompt) if token_id == TURN_START]
    start = headers[-1] if headers else 0
    for skipped in (encode("<|im_start|>assistant\n"), encode("<think></think>")):
        if tuple(prompt[start : start + len(skipped)]) == skipped:
            start += len(skipped)
    return start


def is_thinking(prompt: Sequence[int]) -> bool:
    """No thought has been closed yet in the turn the prompt ends in."""
    backwards = next((i for i in reversed(prompt) if i in (TURN_START, THINK_END)), TURN_START)
    return backwards == TURN_START


def logprob(noise: Noise, position: int, state: int) -> float:
    """A negative multiple of 1/512, which a 32-bit float holds exactly."""
    return -(1 + mix(noise.seed, position, state, 77) % 4095) / 512


class _Voice:
    """Says one token after another."""

    def __init__(self, prompt: Sequence[int], noise: Noise, *, thinks: bool) -> None:
        self._noise, self._digest, self._forced = noise, noise.sampling.digest(), noise.sampling.forced()
        self._start = turn_start(prompt) if noise.resumes else len(prompt)
        self._thinking = thinks and is_thinking(prompt)
        self._end = 4 + mix(noise.seed, self._digest, fold(prompt[: self._start])) % 16
        self._closing = 1 + self._end // 3
        self._last = prompt[-1] if prompt else -1
        self._place, self._state = len(prompt), fold(prompt)

    def next(self, scripted: int | None, *, may_end: bool) -> tuple[int, float]:
        """The next token and its logprob; a scripted one only gets its logprob here."""
        state = mix(self._state, self._digest)
        token_id = self._choose(mix(self._noise.seed, self._place, state), may_end=may_end)
        token_id = token_id if scripted is None else scripted
        lp = 0.0 if self._forced and scripted is None else logprob(self._noise, self._place, state)
        self._place += 1
        self._last = token_id
        self._thinking = self._thinking and token_id != THINK_END
        if self._noise.resumes:
            self._state = fold((token_id,), self._state)
        return token_id, lp

    def _choose(self, dice: int, *, may_end: bool) -> int:
        if self._forced:
            return self._forced[dice % len(self._forced)]
        offset = self._place - self._start
        if self._last == LEAD_BYTE:
            return 0xA0 + dice % 0x20
        if self._thinking and offset >= self._closing:
            return THINK_END
        if may_end and self._ends_at(offset):
            return TURN_END
        follows_whole = not self._ends_at(offset + 1) and offset + 1 != self._closing
        if dice % 100 < 6 and follows_whole:
            return LEAD_BYTE
        return 32 if dice % 100 < 20 else LETTERS[(dice >> 8) % len(LETTERS)]

    def _ends_at(self, offset: int) -> bool:
        return offset >= self._end and (offset - self._end) % 16 == 0


def draw(
    prompt: Sequence[int],
    noise: Noise,
    limits: Limits,
    *,
    thinks: bool = True,
    scripted: Sequence[int] | None = None,
    scripted_finish: Finish = "stop",
) -> Completion:
    """One choice: the scripted tokens or the toy model's own, until something ends it."""
    voice = _Voice(prompt, noise, thinks=thinks)
    ids: list[int] = []
    logprobs: list[float] = []
    while len(ids) < limits.max_tokens:
        if scripted is not None and len(ids) == len(scripted):
            return Completion(tuple(ids), tuple(logprobs), scripted_finish)
        may_end = not limits.ignore_eos and len(ids) >= limits.min_tokens
        token_id, lp = voice.next(scripted[len(ids)] if scripted is not None else None, may_end=may_end)
        ids.append(token_id)
        logprobs.append(lp)
        matched = _match(ids, limits)
        if matched is not None:
            return Completion(tuple(ids), tuple(logprobs), "stop", matched)
    return Completion(tuple(ids), tuple(logprobs), "length")


def _match(ids: Sequence[int], limits: Limits) -> int | str | None:
    """The end token or stop string that the newest token completes."""
    newest = ids[-1]
    ends = newest in limits.stop_token_ids or (newest == TURN_END and not limits.ignore_eos)
    if ends and len(ids) > limits.min_tokens:
        return newest
    if limits.stop:
        text = decode(ids)
        return next((stop for stop in limits.stop if stop in text), None)
    return None


def alternatives(token_id: int, lp: float, count: int) -> list[tuple[int, float]]:
    """The most likely tokens at a place: the chosen one, then ever less likely printable ones."""
    others = [i for i in range(97, 97 + count + 1) if i != token_id and i < VOCABULARY_SIZE]
    ranked = [(token_id, lp), *((other, lp - (k + 1) / 2) for k, other in enumerate(others))]
    return ranked[:count]
