"""Parts of a reply: whatever the cuts, every token belongs to exactly one segment, in order."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from proxy.engine.parts import NOT_GONE_ON, Part, cut, drawn_so_far, join, segments_of
from proxy.model import Completion
from proxy.request.resume import rest_of
from tests import make

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=5)
PROMPT = (7, 8, 9)


def parts_of(lengths: list[int], *, versions: bool = False) -> tuple[Part, ...]:
    """Parts that drew the ids 100, 101, …, each from the ids before it, each token with a logprob of its own."""
    parts, first = list[Part](), make.plan(sampling=make.sampling(length={"max_tokens": 100}))
    for place, length in enumerate(lengths):
        before = drawn_so_far(parts)
        start = len(before.completion_ids)
        plan = rest_of(first, before, seed=place) if parts else replace(first, seed=replace(first.seed, value=0))
        answer = tuple(range(100 + start, 100 + start + length))
        spans = ({"version": f"w{place}", "start": 0, "end": length},) if versions else ()
        prompt = PROMPT + before.completion_ids
        reply = make.completion(prompt, answer, weight_versions=spans, finish_reason="abort")
        tokens = replace(reply.tokens, logprobs=tuple(-token / 1000 for token in answer))
        parts.append(Part(plan, replace(reply, tokens=tokens)))
    return tuple(parts)


@given(LENGTHS, st.booleans())
def test_segments_cover_every_token_once(lengths: list[int], versions: bool) -> None:  # noqa: FBT001
    """They join end to start, and each has the seed and the version of the part that drew it."""
    parts = parts_of(lengths, versions=versions)
    segments = segments_of(parts)
    ends = [segment.end for segment in segments]

    assert [segment.start for segment in segments] == [0, *ends[:-1]]
    assert ends[-1] == len(join(parts).tokens.completion_ids)
    assert [segment.seed for segment in segments] == list(range(len(lengths)))
    assert [segment.weight_version for segment in segments] == [
        f"w{place}" if versions else None for place in range(len(lengths))
    ]


@given(LENGTHS)
def test_the_whole_is_its_parts_in_order(lengths: list[int]) -> None:
    """Ids, logprobs and counts; the prompt is the first part's."""
    whole = join(parts_of(lengths))
    ids = tuple(range(100, 100 + sum(lengths)))

    assert (whole.tokens.prompt_ids, whole.tokens.completion_ids) == (PROMPT, ids)
    assert whole.tokens.logprobs == tuple(-token / 1000 for token in ids)
    assert whole.usage is not None
    assert whole.usage["completion_tokens"] == len(ids)
    assert whole.captured


@given(LENGTHS)
def test_the_rest_of_a_plan_asks_for_the_rest(lengths: list[int]) -> None:
    """Budget and prompt add up, however often it was cut."""
    parts = parts_of(lengths)
    rest = rest_of(parts[0].plan, drawn_so_far(parts), seed=5)

    assert rest.sampling.max_tokens == 100 - sum(lengths)
    assert rest.prefix.token_ids == PROMPT + tuple(range(100, 100 + sum(lengths)))
    assert rest.prefix.length == len(PROMPT) + sum(lengths)


@given(LENGTHS.filter(lambda lengths: len(lengths) > 1), st.data())
def test_a_part_that_went_on_from_other_ids_is_a_gap(lengths: list[int], data: st.DataObject) -> None:
    """One id is enough."""
    parts = list(parts_of(lengths))
    place = data.draw(st.integers(1, len(parts) - 1))
    prompt = parts[place].completion.tokens.prompt_ids
    wrong = data.draw(st.integers(0, len(prompt) - 1))
    parts[place] = Part(
        parts[place].plan, with_prompt(parts[place].completion, (*prompt[:wrong], 1, *prompt[wrong + 1 :]))
    )

    assert join(parts).capture_gaps == (NOT_GONE_ON,)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9))
def test_a_cut_part_keeps_ids_logprobs_and_spans_together(change: int, more: int, kept: int) -> None:
    """What is behind the cut was never drawn."""
    length = change + more
    spans = (
        {"version": "w1", "start": 0, "end": change},
        {"version": "w2", "start": change, "end": length},
    )
    reply = cut(make.completion(PROMPT, tuple(range(length)), weight_versions=spans), kept)

    assert len(reply.tokens.completion_ids) == len(reply.tokens.logprobs) == min(kept, length)
    assert sum(span["end"] - span["start"] for span in reply.weight_versions) == min(kept, length)


def with_prompt(completion: Completion, prompt: tuple[int, ...]) -> Completion:
    return replace(completion, tokens=replace(completion.tokens, prompt_ids=prompt))
