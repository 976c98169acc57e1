"""What the proxy needs of a store, in the words of its callers.

Every writing method returns only when its effect survives a crash of this process; `record` also survives a crash of
the machine when durability is fsync. All raise StoreDown when the store cannot answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from proxy.model import (
    Call,
    CallId,
    Claimed,
    Conversation,
    Delivery,
    GroupFlag,
    JsonObject,
    ParentSearch,
    Pause,
    Profile,
    Reservation,
    Reserved,
    Rollout,
    RolloutId,
    RolloutState,
    SampledTurn,
    Weights,
)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some items in a stable order, and where to go on; no cursor means the end."""

    items: tuple[Item, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Which rollouts a list shows; None does not narrow."""

    run: str | None = None
    group: str | None = None
    state: RolloutState | None = None


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """How a rollout stands: the numbers behind its capture health."""

    calls: int = 0
    completed: int = 0
    failed: int = 0
    reserved: int = 0
    late: int = 0
    """Results that came after the rollout was closed: counted, never added."""
    uncaptured: int = 0
    """Completed calls whose ids or logprobs have gaps."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    failures: tuple[tuple[str, int], ...] = ()
    """(failure kind, number) pairs, most frequent first."""


@dataclass(frozen=True, slots=True)
class PrefixCounts:
    """How a rollout's completed calls came by the tokens before them."""

    total: int = 0
    eligible: int = 0
    """Those with a parent whose ids were to be supplied."""
    supplied: int = 0
    """Of these, those whose returned ids prove it."""
    unsupplied: tuple[tuple[str, int], ...] = ()
    """(reason, number) pairs of the other eligible ones, most frequent first."""


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """A profile changed at run time, and the digest of the settings it was changed from."""

    profile: Profile
    base: str
    changed_at: float


class Store(Protocol):
    """Rollouts, reservations, calls and deliveries, durably."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to it at the same time: then what they changed must be looked for."""

    async def open(self) -> None:
        """Take the store, migrate it, and account for reservations that a dead owner left."""

    async def close(self) -> None:
        """Write what is queued and let go."""

    async def ping(self) -> None:
        """Raise StoreDown unless a write would go through now."""

    async def clock_lead_s(self) -> float:
        """By how much this machine's clock is certainly ahead of the store's; below 0 where it is behind."""

    async def keep(self, name: str, value: str) -> str:
        """The value under `name`; the given one is stored first where there is none yet."""

    # rollouts

    async def create_rollouts(
        self, rollouts: Sequence[Rollout], *, idempotency_key: str | None = None, asked: str = ""
    ) -> tuple[Rollout, ...]:
        """Add all or none.

        `asked` is a digest of the request: the same key with the same digest returns what was created then; with
        another digest, or where an id or (run, group, sample, attempt) was ever used, Conflict is raised.
        """

    async def rollout(self, rollout_id: RolloutId) -> Rollout | None:
        """The rollout in whatever state, or None if the id was never used."""

    async def rollouts(self, narrow: RolloutFilter, cursor: str | None, limit: int) -> Page[Rollout]:
        """Rollouts in order of creation. Deleted ones only where the filter asks for them."""

    async def counts(self, rollout_id: RolloutId) -> RolloutCounts:
        """The numbers of one rollout."""

    async def prefix_counts(self, rollout_id: RolloutId) -> PrefixCounts:
        """How often its exact prefixes were supplied, and why not."""

    async def close_rollout(self, rollout_id: RolloutId, state: RolloutState, at: float) -> Rollout | None:
        """Finish or delete; deleting drops the rollout's calls and keeps the id taken. Idempotent.

        A deleted rollout stays deleted; a finished or expired one may be deleted.
        """

    async def expire_rollouts(self, now: float) -> int:
        """Close open rollouts whose time is over; how many."""

    async def set_outcome(self, rollout_id: RolloutId, outcome: JsonObject) -> Rollout | None:
        """Replace the outcome, also after finish; raises the revision."""

    async def set_call_outcome(self, call_id: CallId, outcome: JsonObject) -> bool:
        """Replace a call's outcome; raises its rollout's revision. False if there is no such call."""

    # calls

    async def reserve(self, reservation: Reservation) -> Reserved | Claimed:
        """Decide in one step whether a request repeats an earlier one, and write it down.

        A claim adds a delivery to the earlier calls; where they failed, their rows are reserved anew. Otherwise a row
        for each draw is written. Raises RolloutClosed if the rollout is not open, SeedCollision if an exclusive seed is
        held by another sample of the same run and group on the same context, LimitReached if a new draw would take the
        rollout over `most_calls`.
        """

    async def renew(self, owner: str, call_ids: Sequence[CallId], lease_until: float) -> None:
        """Move the leases of running calls of this owner; those that another has taken over stay as they are."""

    async def record(self, calls: Sequence[Call]) -> tuple[GroupFlag, ...]:
        """Put the outcomes of one request into its reserved rows, all or none, idempotent by call_id.

        Returns the flags that this raised on the group. Raises RolloutClosed when the rollout was closed meanwhile: the
        results are counted as late and not added. Raises TakenOver where the draw was given up and is tried again.
        """

    async def sweep(self, now: float) -> int:
        """Record reservations whose lease lapsed as failure `proxy_died`; how many."""

    async def deliver(self, delivery: Delivery) -> None:
        """Write down how a delivery ended; not synced on its own."""

    async def group_flags(self, run: str, group: str) -> tuple[GroupFlag, ...]:
        """What is wrong with a group as a whole."""

    async def find_parents(
        self, rollout_id: RolloutId, talk: Conversation, boundaries: Sequence[str], call_ids: Sequence[str] = ()
    ) -> ParentSearch:
        """The calls that a request could go on from: they answered what one of the chain hashes stands for.

        With them, the engine's own ids of the tool calls that clients know as `call_ids`.
        """

    async def sampled_turn(self, rollout_id: RolloutId, call_id: CallId) -> SampledTurn | None:
        """The tokens of a done call of this rollout, and how it ended; None where they are not whole."""

    async def call(self, call_id: CallId) -> JsonObject | None:
        """One call as a `rollpin.call/1` document."""

    async def request_calls(self, rollout_id: RolloutId, request_id: str) -> tuple[JsonObject, ...]:
        """The calls of one request of a rollout, one per choice, as documents; none where it is not this rollout's."""

    async def calls(self, rollout_id: RolloutId, cursor: str | None, limit: int) -> Page[JsonObject]:
        """A rollout's calls as `rollpin.call/1` documents, in order of reservation; reserved ones included."""

    # pauses and weights

    async def pause(self) -> Pause | None:
        """The pause in force."""

    async def begin_pause(self, asked: Pause) -> Pause:
        """Put a pause into force, or renew the lease of the one that is. Raises Conflict where modes differ."""

    async def end_pause(self, seen: Pause | None, at: float) -> bool:
        """Take a pause out of force, as it was seen; whether none is in force then.

        One that somebody asked for meanwhile stays, be it by a longer lease of the same.
        """

    async def stay_alive(self, owner: str, until: float, now: float) -> None:
        """A replica is counted among the live ones: until then pauses wait for its acknowledgement."""

    async def prolong(self, owner: str, until: float, now: float) -> bool:
        """Its next sign of life. False where it is not counted any more: then nothing was written."""

    async def is_counted(self, owner: str) -> bool:
        """Whether a replica is counted. One that is not was forgotten: pauses may have been granted without it."""

    async def leave(self, owner: str) -> None:
        """A replica ends in an orderly way."""

    async def acknowledge(self, owner: str, pause_id: str) -> None:
        """A replica sends no more calls to engines."""

    async def silent(self, pause_id: str, now: float) -> tuple[str, ...]:
        """Live replicas that have not acknowledged the pause; those whose lease has run out are forgotten first."""

    async def weights(self) -> tuple[Weights, ...]:
        """What is known of each engine's weights."""

    async def change_weights(self, seen: Weights, at: float, *, only_if_new: bool = False) -> Weights:
        """Note new weights of an engine under its next epoch, which is returned with them.

        With `only_if_new` nothing changes where the version is the one that is on record.
        """

    # profiles

    async def stored_profiles(self) -> tuple[StoredProfile, ...]:
        """Profiles that were changed at run time."""

    async def put_profile(self, stored: StoredProfile) -> None:
        """Keep a run-time change."""
