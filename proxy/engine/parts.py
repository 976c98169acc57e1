"""The parts of a reply that was interrupted, put together: ids, logprobs, usage, and who drew which token. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from proxy.model import Completion, JsonObject, Plan, Segment, Tokens, Weights

# The capture gap of a part that does not prove to go on from the ids before it.
NOT_GONE_ON = "resumed_prompt_mismatch"


# What is not certain of a segment's versions; docs/weights.md tells each.
VERSION_NOT_TOLD = "version_not_told"
WEIGHTS_CHANGED = "weights_changed_in_mid_reply"
STALE_KV = "stale_kv"
KV_UNKNOWN = "kv_unknown"
PRESENCE_UNPROVEN = "presence_unproven"

UNKNOWN = Weights("")


@dataclass(frozen=True, slots=True)
class Part:
    """One answer of an engine within a reply."""

    plan: Plan
    """As it was asked: with its own seed, and from the second part on with the ids so far as its prompt."""
    completion: Completion
    before: Weights = UNKNOWN
    """The engine's weights as they were known when the part was asked for: its cache salt is theirs."""
    after: Weights = UNKNOWN
    """As they were known at a moment after its end; of an earlier one only where the engine reports spans."""
    is_cache_apart: bool = True
    """Whether the salt is known to keep the caches of different weights apart."""
    is_present: bool = True
    """Whether no pause can have been granted behind this process's back while the part was drawn."""


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
        routed_experts=tuple(blob for part in parts for blob in part.completion.routed_experts),
        logprob_entries=tuple(entry for part in parts for entry in part.completion.logprob_entries),
        candidates=tuple(one for part in parts for one in part.completion.candidates),
        capture_gaps=tuple(dict.fromkeys(_gaps(parts))),
    )


def segments_of(parts: Sequence[Part]) -> tuple[Segment, ...]:
    """Who drew which tokens: one segment per part, or one per weight version where the engine reports them."""
    found = list[Segment]()
    for part in parts:
        offset = found[-1].end if found else 0
        found.extend(_moved(_doubted(segment, part), offset) for segment in _segments(part))
    return tuple(found)


def _doubted(segment: Segment, part: Part) -> Segment:
    """Weights and caches may have changed in ways that nobody told this process of."""
    return segment if part.is_present else replace(segment, notes=(*segment.notes, PRESENCE_UNPROVEN))


def _moved(segment: Segment, offset: int) -> Segment:
    return replace(segment, start=segment.start + offset, end=segment.end + offset)


def _segments(part: Part) -> Iterator[Segment]:
    """The segments of one part, counted from its own first token."""
    length = len(part.completion.tokens.completion_ids)
    spans = part.completion.weight_versions
    if not length:
        return
    if not _tile(spans, length):
        version, notes = _version_without_spans(part)
        yield _segment(part, 0, length, version, notes=(*notes, *_stale(part, part.before)))
        return
    previous: str | None = None
    for span in spans:
        version = span["version"]
        if previous is None:
            notes = _stale(part, part.before if version == part.before.version else part.after)
            yield _segment(part, 0, span["end"], version, notes=_met_other_weights(part, version) or notes)
        else:
            fate = part.after.kv if part.after.version == version else "unknown"
            kept = previous if fate == "kept" else None
            notes = (KV_UNKNOWN,) if fate == "unknown" else ()
            yield _segment(part, span["start"], span["end"], version, kv_version=kept, notes=notes)
        previous = version


def _segment(
    part: Part, start: int, end: int, version: str | None, *, kv_version: str | None = None, notes: tuple[str, ...]
) -> Segment:
    return Segment(start, end, part.plan.seed.value, version, part.plan.engine.name, kv_version, notes)


def _version_without_spans(part: Part) -> tuple[str | None, tuple[str, ...]]:
    """One version for a whole part, if the engine had it before and after and no other came between."""
    if part.before.epoch == part.after.epoch and part.before.version == part.after.version:
        known = part.before.version
        if known is not None and not part.is_present:
            return None, ()
        return known, () if known is not None else (VERSION_NOT_TOLD,)
    if part.after.version is None:
        return None, (VERSION_NOT_TOLD,)
    return None, (WEIGHTS_CHANGED,)


def _met_other_weights(part: Part, version: str) -> tuple[str, ...]:
    """A part that was asked for under the salt of other weights than drew it may have met what those had cached."""
    if part.before.version in (version, None):
        return ()
    is_clean = part.after.version == version and part.after.is_flushed
    return () if is_clean else (STALE_KV,)


def _stale(part: Part, weights: Weights) -> tuple[str, ...]:
    """Neither salt nor flush kept the cache of earlier weights away."""
    return () if part.is_cache_apart or weights.is_flushed else (STALE_KV,)


def _tile(spans: Sequence[JsonObject], length: int) -> bool:
    """Whether the engine's spans cover every token once, in order."""
    ends = [0, *(span["end"] for span in spans)]
    return (
        bool(spans)
        and ends[-1] == length
        and all(span["start"] == end < span["end"] for span, end in zip(spans, ends, strict=False))
    )


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
