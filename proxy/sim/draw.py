"""The toy model's sampling loop: one token after another, until something ends the reply."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from proxy.noise import WORD
from proxy.sim.shaping import Manner, Sampling, choose, distribution, first_counts
from proxy.sim.tokens import THINK_END, TURN_END, TURN_START, decode, encode
from proxy.sim.voices import Dictation, Finish, Voice

Top = tuple[tuple[int, float], ...]

HEADER = encode("<|im_start|>assistant\n")
EMPTY_THOUGHT = encode("<think></think>")
# Sets the sequential stream apart from the noise by position, so that one seed never means the same on both engines.
STREAM_SALT = 0x53494D << 32


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
    manner: Manner

    def place(self, prompt_tokens: int, drawn: int) -> tuple[int, int]:
        """Seed and position of a draw: the last existing token's position, or the number of the draw.

        SGLang's noise hangs on the position. vLLM's generator starts at the first draw of each request, whatever the
        prompt, and uses the seed's low 32 bits.
        """
        if self.manner.by_position:
            return self.seed, prompt_tokens - 1 + drawn
        return (self.seed & WORD) | STREAM_SALT, drawn


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model printed for one choice."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    matched: int | str | None = None
    """The end token or stop string that ended it."""
    tops: tuple[Top, ...] = ()
    """The likeliest tokens at each place, where they were asked for."""

    def cut(self, tokens: int, finish: Finish) -> "Completion":
        """The first tokens of it, ended from outside."""
        return replace(self, ids=self.ids[:tokens], logprobs=self.logprobs[:tokens], finish=finish, matched=None)

    def printed(self) -> tuple[int, ...]:
        """The ids that become text: without the end token, which an abort may have kept from being matched."""
        ends = bool(self.ids) and (
            (self.finish == "stop" and self.matched == self.ids[-1])
            or (self.finish == "abort" and self.ids[-1] == TURN_END)
        )
        return self.ids[:-1] if ends else self.ids


def turn_start(prompt: Sequence[int]) -> int:
    """Where the assistant's own words begin in a prompt, past the header and an empty thought."""
    headers = [place for place, token_id in enumerate(prompt) if token_id == TURN_START]
    start = headers[-1] if headers else 0
    for skipped in (HEADER, EMPTY_THOUGHT):
        if tuple(prompt[start : start + len(skipped)]) == skipped:
            start += len(skipped)
    return start


def is_thinking(prompt: Sequence[int]) -> bool:
    """No thought has been closed yet in the turn the prompt ends in."""
    backwards = next((i for i in reversed(prompt) if i in (TURN_START, THINK_END)), TURN_START)
    return backwards == TURN_START


def draw(prompt: Sequence[int], noise: Noise, limits: Limits, voice: Voice, *, top: int = 0) -> Completion:
    """One choice: what the voice finds likely, drawn with the noise, until something ends it."""
    ids: list[int] = []
    logprobs: list[float] = []
    tops: list[Top] = []
    said = first_counts(prompt, noise.manner)
    dictated = voice if isinstance(voice, Dictation) else None
    while len(ids) < limits.max_tokens:
        if dictated and len(ids) == len(dictated.ids):
            return Completion(tuple(ids), tuple(logprobs), dictated.finish, None, tuple(tops))
        may_end = not limits.ignore_eos and len(ids) >= limits.min_tokens
        banned = () if may_end or dictated else (TURN_END,)
        spread = distribution(voice.likely(may_end=may_end), noise.sampling, said, noise.manner, banned)
        seed, position = noise.place(len(prompt), len(ids))
        token_id = dictated.ids[len(ids)] if dictated else choose(spread.sampled, noise.sampling, seed, position)
        ids.append(token_id)
        logprobs.append(spread.logprob(token_id))
        tops.append(spread.top(top) if top else ())
        matched = _match(ids, limits)
        if matched is not None:
            return Completion(tuple(ids), tuple(logprobs), "stop", matched, tuple(tops))
        voice.feed(token_id)
        said[token_id] += 1
    return Completion(tuple(ids), tuple(logprobs), "length", None, tuple(tops))


def _match(ids: Sequence[int], limits: Limits) -> int | str | None:
    """The end token or stop string that the newest token completes."""
    newest = ids[-1]
    ends = newest in limits.stop_token_ids or (newest == TURN_END and not limits.ignore_eos)
    if ends and len(ids) > limits.min_tokens:
        return newest
    if limits.stop:
        longest = max(len(stop.encode(errors="replace")) for stop in limits.stop)
        newest_text = decode(ids[-longest:])
        return next((stop for stop in limits.stop if stop and stop in newest_text), None)
    return None
