"""The parts of a reply that was interrupted, put together: ids, logprobs, usage, and who drew which token. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from proxy.model import Completion, JsonObject, Plan, Segment, Tokens

# The capture gap of a part that does not prove to go on from the ids before it.
NOT_GONE_ON = "resumed_prompt_mismatch"


@dataclass(frozen=True, slots=True)
class Part:
    """One answer of an engine within a reply."""

    plan: Plan
    """As it was asked: with its own seed, and from the second part on with the ids so far as its prompt."""
    completion: Completion


def drawn_so_far(parts: Sequence[Part]) -> Tokens:
    """The reply's prompt, and all that was drawn behind it."""
    return Tokens(
        parts[0].completion.tokens.prompt_ids if parts else (),
        tuple(token for part in parts for token in part.completion.tokens.completion_ids),
        tuple(logprob for part in parts for logprob in part.completion.tokens.logprobs),
    )


def join(parts: Sequence[Part]) -> Completion:
    """All parts as one reply; a single one as it is.

    The message is the first part's: parsers begin anew in each part, so what the whole says is for them to tell.
    """
    first, last = parts[0].completion, parts[-1].completion
    if len(parts) == 1:
        return first
    return replace(
        first,
        tokens=drawn_so_far(parts),
        finish_reason=last.finish_reason,
        matched_stop=last.matched_stop,
        usage=_usage(drawn_so_far(parts)),
        weight_versions=tuple(_spans(parts)),
        logprob_entries=tuple(entry for part in parts for entry in part.completion.logprob_entries),
        candidates=tuple(one for part in parts for one in part.completion.candidates),
        capture_gaps=tuple(dict.fromkeys(_gaps(parts))),
    )


def segments_of(parts: Sequence[Part]) -> tuple[Segment, ...]:
    """Who drew which tokens: one segment per part, or one per weight version where the engine reports them."""
    found = list[Segment]()
    offset = 0
    for part in parts:
        length = len(part.completion.tokens.completion_ids)
        spans = part.completion.weight_versions or ({"start": 0, "end": length, "version": None},)
        found.extend(
            Segment(
                offset + span["start"],
                offset + span["end"],
                part.plan.seed.value,
                span["version"],
                part.plan.engine.name,
            )
            for span in spans
            if length
        )
        offset += length
    return tuple(found)


def cut(completion: Completion, length: int) -> Completion:
    """The first tokens of a part, as if no more had been drawn."""
    tokens = completion.tokens
    return replace(
        completion,
        tokens=replace(tokens, completion_ids=tokens.completion_ids[:length], logprobs=tokens.logprobs[:length]),
        logprob_entries=completion.logprob_entries[:length],
        candidates=completion.candidates[:length],
        weight_versions=tuple(
            {**span, "end": min(span["end"], length)} for span in completion.weight_versions if span["start"] < length
        ),
    )


def _spans(parts: Sequence[Part]) -> Iterator[JsonObject]:
    """The engine's weight spans, counted from the reply's first token."""
    offset = 0
    for part in parts:
        for span in part.completion.weight_versions:
            yield {**span, "start": span["start"] + offset, "end": span["end"] + offset}
        offset += len(part.completion.tokens.completion_ids)


def _gaps(parts: Sequence[Part]) -> Iterator[str]:
    """What is missing in any part, and whether each proves to have gone on from the ids before it."""
    for place, part in enumerate(parts):
        yield from part.completion.capture_gaps
        before = drawn_so_far(parts[:place])
        if place and part.completion.tokens.prompt_ids != before.prompt_ids + before.completion_ids:
            yield NOT_GONE_ON


def _usage(tokens: Tokens) -> JsonObject:
    """Counts of the whole: each part's own usage takes the parts before it for its prompt."""
    prompt, sampled = len(tokens.prompt_ids), len(tokens.completion_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
