"""The toy model speaks a language, and what it says hangs on the tokens so far and nothing else."""

import math
from itertools import combinations

import pytest

from proxy.sim.draw import Completion, Limits, Noise, draw, turn_start
from proxy.sim.shaping import Manner, Sampling
from proxy.sim.tokens import THINK_END, THINK_START, TURN_END, decode, encode
from proxy.sim.voices import Chatter, Recital, Voice
from proxy.sim.words import END, FOLLOWS, KINDS

BY_POSITION = Manner(by_position=True, raw_logprobs=False, penalises_prompt=False)
AS_STREAM = Manner(by_position=False, raw_logprobs=False, penalises_prompt=False)
PROMPT = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
TURNS = tuple((*encode(text), TURN_END) for text in ("yes it is", "yes it was", "no"))
SEEDS = range(40)


def say(
    seed: int,
    voice: Voice,
    prompt: tuple[int, ...] = PROMPT,
    manner: Manner = BY_POSITION,
    limits: Limits = Limits(400),  # noqa: B008  frozen
) -> Completion:
    return draw(prompt, Noise(seed, Sampling(), manner), limits, voice)


def chatter(*, thinks: bool = False, context: int = 5) -> Chatter:
    return Chatter(context, thinks=thinks)


@pytest.mark.parametrize("kind", FOLLOWS)
def test_a_half_printed_word_is_never_ambiguous(kind: str) -> None:
    """No word that may come here begins with another."""
    words = [word for following in FOLLOWS[kind] if following != END for word in KINDS[following]]

    assert not [pair for pair in combinations(sorted(words), 2) if pair[1].startswith(pair[0])]


def test_it_says_words_and_ends() -> None:
    """A thought in its marks first, where thinking is on."""
    known = {word for words in KINDS.values() for word in words} | {"à", "jour"}
    replies = [say(seed, chatter(thinks=True)) for seed in SEEDS]

    for reply in replies:
        thought, said = decode(reply.ids).removeprefix("<think>").removesuffix("<|im_end|>").split("</think>")
        assert set(thought.split()) | set(said.split()) <= known
        assert (reply.ids[0], reply.finish, reply.matched) == (THINK_START, "stop", TURN_END)
    assert len({reply.ids for reply in replies}) > len(SEEDS) / 2


def test_the_conversation_moves_what_is_likely() -> None:
    """Another context, other logprobs, other tokens."""
    here, there = (chatter(context=context).likely(may_end=True) for context in (5, 6))

    assert set(here) == set(there)
    assert here != there


@pytest.mark.parametrize("thinks", [False, True])
def test_a_reply_resumes_anywhere(thinks: bool) -> None:  # noqa: FBT001  a parameter of the test
    """The prompt with the first tokens appended, and the same seed: the rest, logprobs included."""
    for make in (chatter, lambda *, thinks: Recital(TURNS, chatter(thinks=thinks), thinks=thinks)):
        whole = say(3, make(thinks=thinks))
        for cut in range(len(whole.ids)):
            voice = make(thinks=thinks)
            for token_id in whole.ids[:cut]:
                voice.feed(token_id)
            rest = say(3, voice, PROMPT + whole.ids[:cut])
            assert (rest.ids, rest.logprobs) == (whole.ids[cut:], whole.logprobs[cut:])


def test_a_sequential_stream_starts_anew() -> None:
    """As vLLM's does: the same draws, whatever the prompt, and only the seed's low 32 bits count."""
    longer = encode("x") + PROMPT

    assert say(3, chatter(), longer, AS_STREAM).ids == say(3, chatter(), PROMPT, AS_STREAM).ids
    assert say(3, chatter(), longer).ids != say(3, chatter(), PROMPT).ids
    assert say(3, chatter(), manner=AS_STREAM).ids == say(3 + 2**32, chatter(), manner=AS_STREAM).ids


def test_a_recital_says_one_of_its_turns() -> None:
    """As often as they are alike, and its logprobs add up to that."""
    replies = [say(seed, Recital(TURNS, chatter(), thinks=False)) for seed in range(300)]
    counts = {turn: sum(reply.ids == turn for reply in replies) for turn in TURNS}

    assert sum(counts.values()) == len(replies)
    assert all(60 < count < 140 for count in counts.values())
    assert all(math.exp(sum(reply.logprobs)) == pytest.approx(1 / 3) for reply in replies)


def test_a_thought_comes_before_a_recital() -> None:
    """Of the toy model's own, so that samples differ more than their phrasings do."""
    replies = [say(seed, Recital(TURNS, chatter(thinks=True), thinks=True)).ids for seed in SEEDS]

    assert all(ids[ids.index(THINK_END) + 1 :] in TURNS for ids in replies)
    assert len({ids[: ids.index(THINK_END)] for ids in replies}) > len(TURNS)


def test_words_go_on_where_the_end_is_not_allowed() -> None:
    """By min_tokens or ignore_eos; a stop string ends them, and its tokens stay."""
    assert len(say(3, chatter(), limits=Limits(400, min_tokens=90)).ids) > 90
    endless = say(3, Recital(TURNS, chatter(), thinks=False), limits=Limits(150, ignore_eos=True))
    assert (len(endless.ids), endless.finish) == (150, "length")
    stopped = say(3, Recital(TURNS[:1], chatter(), thinks=False), limits=Limits(100, stop=("it",)))
    assert (decode(stopped.ids), stopped.matched) == ("yes it", "it")


def test_what_was_never_likely_leads_back_to_words() -> None:
    """A prompt may hold anything."""
    voice = chatter()
    for token_id in encode("Zq#"):
        voice.feed(token_id)

    assert say(3, voice).finish == "stop"


def test_a_turn_begins_behind_its_header() -> None:
    """And behind an empty thought; a prompt without any header begins at once."""
    assert turn_start(PROMPT) == len(PROMPT)
    assert turn_start(PROMPT + encode("<think></think>ab")) == len(PROMPT) + 2
    assert turn_start(encode("abc")) == 0
