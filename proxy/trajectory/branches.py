"""Branches: chains as rows, with masks and logprobs, spans in the row's own positions, and reasons."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from proxy.ids import shared_ids, unpack_ids
from proxy.model import CallId, JsonObject
from proxy.trajectory.call_facts import CallFacts
from proxy.trajectory.chains import Chain
from proxy.trajectory.lineage import Lineage

BranchKind = Literal["main", "subagent", "side", "retry", "unused", "orphan"]
TRAINABLE_KINDS = frozenset({"main", "subagent"})


@dataclass(frozen=True, slots=True)
class Trainable:
    """Whether something may be trained on, and what stands in the way."""

    value: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fork:
    """The branch that this one shares its beginning with."""

    branch: CallId
    length: int
    """How many token ids the two have in common from the start."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start … end-1 of a branch, and what is told of them."""

    start: int
    end: int
    facts: JsonObject


@dataclass(frozen=True, slots=True)
class Link:
    """How a call hangs in its branch."""

    call_id: CallId
    parent_call_id: CallId | None
    """The parent by meaning, or by tokens where it was joined."""
    reason: str


@dataclass(frozen=True, slots=True)
class Branch:
    """One training row."""

    branch_id: CallId
    kind: BranchKind
    lane: str
    side_reason: str | None
    """Why it may be a side call; None where nothing says so."""
    trainable: Trainable
    forked_from: Fork | None
    call_ids: tuple[CallId, ...]
    owned_call_ids: tuple[CallId, ...]
    links: tuple[Link, ...]
    """One for each owned call."""
    tokens: bytes
    """Packed ids; mask and logprobs are as tight, and become lists only in a document."""
    loss_mask: bytes
    """A byte for each token, 1 or 0."""
    logprobs: "array[float]"
    weight_spans: tuple[Span, ...]
    seeds: tuple[Span, ...]
    constrained_spans: tuple[Span, ...]
    call_outcomes: tuple[tuple[CallId, JsonObject], ...]
    finish_reason: str | None

    @property
    def token_ids(self) -> list[int]:
        """Prompt and reply of its last call, made anew each time: a list takes ten times the room."""
        return unpack_ids(self.tokens)

    @property
    def maybe_side(self) -> bool:
        """Whether it looks like a side call and cannot be proven to be one."""
        return self.side_reason is not None


@dataclass(frozen=True, slots=True)
class Role:
    """What was decided about a chain before its row is made."""

    kind: BranchKind
    lane: str
    side_reason: str | None
    bars: tuple[str, ...]
    """What stands in the way of training on it, the tokens themselves aside."""
    masks_constrained: bool


def make_branch(chain: Chain, role: Role, lineage: Lineage, holders: Mapping[CallId, Chain]) -> Branch:
    """The row of a chain; `holders` tells which chain owns a call."""
    trained = _trained(chain, role)
    mask, logprobs = _arrays(chain.last, trained)
    return Branch(
        branch_id=chain.name,
        kind=role.kind,
        lane=role.lane,
        side_reason=role.side_reason,
        trainable=_trainable(chain, role, trained),
        forked_from=_forked_from(chain, lineage, holders),
        call_ids=tuple(call.call_id for call in chain.calls),
        owned_call_ids=tuple(call.call_id for call in chain.owned),
        links=tuple(_link(call, chain, lineage) for call in chain.owned),
        tokens=chain.last.tokens,
        loss_mask=mask,
        logprobs=logprobs,
        weight_spans=tuple(_weight_spans(chain.owned)),
        seeds=tuple(_seed_spans(chain.owned)),
        constrained_spans=tuple(_constrained_spans(chain.owned)),
        call_outcomes=tuple((call.call_id, found) for call in chain.owned if (found := call.document["outcome"])),
        finish_reason=chain.last.document["finish_reason"],
    )


def _trained(chain: Chain, role: Role) -> list[CallFacts]:
    """The owned calls whose tokens are trained on."""
    if role.bars or role.kind not in TRAINABLE_KINDS:
        return []
    return [call for call in chain.owned if call.generated and not (call.constrained and role.masks_constrained)]


def _trainable(chain: Chain, role: Role, trained: Sequence[CallFacts]) -> Trainable:
    if role.bars:
        return Trainable(value=False, reasons=role.bars)
    if trained:
        return Trainable(value=True)
    is_constrained = any(call.generated for call in chain.owned)
    return Trainable(value=False, reasons=("constrained" if is_constrained else "no_generated_tokens",))


def _arrays(last: CallFacts, trained: Sequence[CallFacts]) -> tuple[bytes, "array[float]"]:
    """Mask and logprobs: those of the trained calls in their places, zeros elsewhere."""
    length = last.prompt_length + last.generated
    mask, logprobs = bytearray(length), array("d", bytes(8 * length))
    for call in trained:
        start, end = _place(call)
        mask[start:end] = b"\1" * (end - start)
        logprobs[start:end] = call.logprobs
    return bytes(mask), logprobs


def _place(call: CallFacts) -> tuple[int, int]:
    """Where a call's generated tokens stand, in its own tokens and in all that extend them."""
    return call.prompt_length, call.prompt_length + call.generated


def _forked_from(chain: Chain, lineage: Lineage, holders: Mapping[CallId, Chain]) -> Fork | None:
    """The branch of the last shared call; without one, that of the nearest ancestor, as far as ids are shared."""
    if chain.shared:
        source: CallFacts | None = chain.shared[-1]
    else:
        above = lineage.ancestors(chain.owned[0])
        source = next((one for one in above if one.call_id in chain.allowed), None)
    if source is None:
        return None
    other = holders[source.call_id]
    length = shared_ids(chain.last.tokens, other.last.tokens)
    return Fork(other.name, length) if length else None


def _link(call: CallFacts, chain: Chain, lineage: Lineage) -> Link:
    parent = lineage.parents.get(call.call_id)
    return Link(call.call_id, parent, _link_reason(call, chain, lineage, parent))


def _link_reason(call: CallFacts, chain: Chain, lineage: Lineage, parent: CallId | None) -> str:
    """Why the call stands where it does: the parent's reason where there is none, else how it goes on from it."""
    if parent is None:
        return call.parent_reason
    if call.call_id in lineage.joined:
        return "by_tokens"
    if parent in (one.call_id for one in chain.calls):
        return "extends"
    if unusable := lineage.calls[parent].unusable:
        return f"parent_{unusable}"
    return "not_extending" if parent in chain.allowed else "parent_not_kept"


def _weight_spans(calls: Sequence[CallFacts]) -> Iterator[Span]:
    for call, segment, start, end in _segments(calls):
        facts = {name: segment.get(name) for name in ("weight_version", "kv_version", "engine")}
        yield Span(start, end, {"call_id": call.call_id, **facts})


def _seed_spans(calls: Sequence[CallFacts]) -> Iterator[Span]:
    for call, segment, start, end in _segments(calls):
        yield Span(start, end, {"call_id": call.call_id, "seed": segment["seed"]})


def _constrained_spans(calls: Sequence[CallFacts]) -> Iterator[Span]:
    for call in calls:
        if call.constrained and call.generated:
            yield Span(*_place(call), {"call_id": call.call_id, "fields": list(call.constrained)})


def _segments(calls: Sequence[CallFacts]) -> Iterator[tuple[CallFacts, JsonObject, int, int]]:
    for call in calls:
        first = call.prompt_length
        for segment in call.document["segments"] or ():
            yield call, segment, first + segment["start"], first + segment["end"]
