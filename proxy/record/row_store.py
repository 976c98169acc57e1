"""The store over any database: what is read and written, and how, stands in the `*_rows` modules.

When a write is durable stands in the writer. A kind of store adds how it is opened, and who is dead by then.
"""

import asyncio
from collections.abc import Sequence

from proxy import clock
from proxy.errors import RolloutClosed
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
    Reservation,
    Reserved,
    Rollout,
    RolloutId,
    RolloutState,
    SampledTurn,
    Weights,
)
from proxy.record import call_rows, delivery_rows, kept_rows, rollout_rows, weight_rows
from proxy.record.collapse import read_flags
from proxy.record.database import Database
from proxy.record.documents import read_call, read_calls, read_request
from proxy.record.parent_rows import find_parents, read_sampled_turn
from proxy.record.prompts import StagedTokens, TokenMemory
from proxy.record.reader import Reader
from proxy.record.store import Page, PrefixCounts, RolloutCounts, RolloutFilter, StoredProfile
from proxy.record.writer import Durability, Writer


class StoreReading:
    """The reading half of a store, which disturbs no writer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = Reader(database)
        self._memory = TokenMemory()

    @property
    def name(self) -> str:
        """As people are told of it; holds no secret."""
        return self._database.name

    async def open(self) -> None:
        """Check that a store of this version is there. Raises StoreDown and StoreUnreadable."""
        try:
            await asyncio.to_thread(self._check)
        except self._database.error as error:
            raise self._database.down(error) from error
        self._reader.start()

    def _check(self) -> None:
        """Raise StoreDown or StoreUnreadable, or what the driver raises."""
        raise NotImplementedError

    async def close(self) -> None:
        await self._reader.stop()

    async def rollout(self, rollout_id: RolloutId) -> Rollout | None:
        return await self._reader.read(lambda db: rollout_rows.read_rollout(db, rollout_id))

    async def rollouts(self, narrow: RolloutFilter, cursor: str | None, limit: int) -> Page[Rollout]:
        return await self._reader.read(lambda db: rollout_rows.read_rollouts(db, narrow, cursor, limit))

    async def counts(self, rollout_id: RolloutId) -> RolloutCounts:
        return await self._reader.read(lambda db: rollout_rows.read_counts(db, rollout_id))

    async def prefix_counts(self, rollout_id: RolloutId) -> PrefixCounts:
        return await self._reader.read(lambda db: rollout_rows.read_prefix_counts(db, rollout_id))

    async def call(self, call_id: CallId) -> JsonObject | None:
        return await self._reader.read(lambda db: read_call(db, call_id))

    async def request_calls(self, rollout_id: RolloutId, request_id: str) -> tuple[JsonObject, ...]:
        return await self._reader.read(lambda db: read_request(db, rollout_id, request_id))

    async def calls(self, rollout_id: RolloutId, cursor: str | None, limit: int) -> Page[JsonObject]:
        return await self._reader.read(lambda db: read_calls(db, rollout_id, cursor, limit))

    async def find_parents(
        self, rollout_id: RolloutId, talk: Conversation, boundaries: Sequence[str], call_ids: Sequence[str] = ()
    ) -> ParentSearch:
        return await self._reader.read(lambda db: find_parents(db, rollout_id, talk, boundaries, call_ids))

    async def sampled_turn(self, rollout_id: RolloutId, call_id: CallId) -> SampledTurn | None:
        return await self._reader.read(lambda db: read_sampled_turn(db, self._memory, rollout_id, call_id))

    async def group_flags(self, run: str, group: str) -> tuple[GroupFlag, ...]:
        return await self._reader.read(lambda db: read_flags(db, run, group))

    async def pause(self) -> Pause | None:
        return await self._reader.read(weight_rows.read_pause)

    async def is_counted(self, owner: str) -> bool:
        return await self._reader.read(lambda db: weight_rows.is_counted(db, owner))

    async def weights(self) -> tuple[Weights, ...]:
        return await self._reader.read(weight_rows.read_weights)

    async def stored_profiles(self) -> tuple[StoredProfile, ...]:
        return await self._reader.read(kept_rows.read_profiles)


class RowStore(StoreReading):
    """The whole store, less its opening."""

    def __init__(self, database: Database, durability: Durability = "fsync") -> None:
        super().__init__(database)
        self._writer = Writer(database, durability)

    async def close(self) -> None:
        await self._writer.stop()
        await self._reader.stop()

    async def ping(self) -> None:
        await self._writer.write(kept_rows.ping, durable=False)

    async def keep(self, name: str, value: str) -> str:
        return await self._writer.write(lambda db: kept_rows.keep(db, name, value), durable=True)

    async def create_rollouts(
        self, rollouts: Sequence[Rollout], *, idempotency_key: str | None = None, asked: str = ""
    ) -> tuple[Rollout, ...]:
        return await self._writer.write(
            lambda db: rollout_rows.create_rollouts(db, rollouts, idempotency_key, asked), durable=True
        )

    async def close_rollout(self, rollout_id: RolloutId, state: RolloutState, at: float) -> Rollout | None:
        if state == "open":
            raise ValueError("a closed rollout does not open again")
        return await self._writer.write(lambda db: rollout_rows.close_rollout(db, rollout_id, state, at), durable=True)

    async def expire_rollouts(self, now: float) -> int:
        return await self._writer.write(lambda db: rollout_rows.expire_rollouts(db, now), durable=True)

    async def set_outcome(self, rollout_id: RolloutId, outcome: JsonObject) -> Rollout | None:
        return await self._writer.write(lambda db: rollout_rows.set_outcome(db, rollout_id, outcome), durable=True)

    async def set_call_outcome(self, call_id: CallId, outcome: JsonObject) -> bool:
        return await self._writer.write(lambda db: call_rows.set_call_outcome(db, call_id, outcome), durable=True)

    async def reserve(self, reservation: Reservation) -> Reserved | Claimed:
        return await self._writer.write(lambda db: call_rows.reserve(db, reservation), durable=False)

    async def renew(self, owner: str, call_ids: Sequence[CallId], lease_until: float) -> None:
        await self._writer.write(lambda db: call_rows.renew(db, owner, call_ids, lease_until), durable=False)

    async def record(self, calls: Sequence[Call]) -> tuple[GroupFlag, ...]:
        tokens = StagedTokens(self._memory)
        flags = await self._writer.write(lambda db: call_rows.record(db, tokens, calls), durable=True)
        tokens.keep()
        if flags is None:
            rollout_id = calls[0].plan.ask.identity.rollout_id
            raise RolloutClosed(f"rollout {rollout_id!r} was closed before the reply had ended")
        return flags

    async def sweep(self, now: float) -> int:
        return await self._writer.write(lambda db: call_rows.sweep(db, now), durable=True)

    async def deliver(self, delivery: Delivery) -> None:
        await self._writer.write(lambda db: delivery_rows.end_delivery(db, delivery), durable=False)

    async def begin_pause(self, asked: Pause) -> Pause:
        return await self._writer.write(lambda db: weight_rows.begin_pause(db, asked), durable=True)

    async def end_pause(self, seen: Pause | None, at: float) -> bool:
        return await self._writer.write(lambda db: weight_rows.end_pause(db, seen, at), durable=True)

    async def stay_alive(self, owner: str, until: float, now: float) -> None:
        await self._writer.write(lambda db: weight_rows.stay_alive(db, owner, until, now), durable=False)

    async def prolong(self, owner: str, until: float, now: float) -> bool:
        return await self._writer.write(lambda db: weight_rows.prolong(db, owner, until, now), durable=False)

    async def silent(self, pause_id: str, now: float) -> tuple[str, ...]:
        return await self._writer.write(lambda db: weight_rows.find_silent(db, pause_id, now), durable=False)

    async def leave(self, owner: str) -> None:
        await self._writer.write(lambda db: weight_rows.leave(db, owner, clock.now()), durable=False)

    async def acknowledge(self, owner: str, pause_id: str) -> None:
        await self._writer.write(lambda db: weight_rows.acknowledge(db, owner, pause_id), durable=True)

    async def change_weights(self, seen: Weights, at: float, *, only_if_new: bool = False) -> Weights:
        return await self._writer.write(
            lambda db: weight_rows.change_weights(db, seen, at, only_if_new=only_if_new), durable=True
        )

    async def put_profile(self, stored: StoredProfile) -> None:
        await self._writer.write(lambda db: kept_rows.put_profile(db, stored), durable=True)
