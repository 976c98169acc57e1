"""The store in one SQLite file, for one proxy process: nothing to install, every promise kept.

What is written and how stands in the `*_rows` modules, when it is durable in the writer. A second process is refused
rather than shared with; who only wants to look opens the file with `open_reading`.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from proxy.errors import RolloutClosed, StoreDown
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
from proxy.record.connection import connect_reading, connect_writing, create_private
from proxy.record.documents import read_call, read_calls, read_request
from proxy.record.faults import StoreUnreadable, store_down
from proxy.record.lock import FileLock
from proxy.record.migrations import migrate, missing, read_migrations
from proxy.record.parent_rows import find_parents, read_sampled_turn
from proxy.record.prompts import TokenMemory
from proxy.record.reader import Reader
from proxy.record.store import Page, PrefixCounts, RolloutCounts, RolloutFilter, StoredProfile
from proxy.record.writer import Durability, Writer


class SqliteReading:
    """The reading half of a store, which needs no lock and disturbs no writer."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._reader = Reader(self._path, connect_reading)
        self._memory = TokenMemory()

    async def open(self) -> None:
        """Check that the file is there and of this version."""
        try:
            await asyncio.to_thread(self._check)
        except sqlite3.Error as error:
            raise store_down(error, self._path) from error
        self._reader.start()

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

    async def silent(self, pause_id: str, now: float) -> tuple[str, ...]:
        return await self._reader.read(lambda db: weight_rows.read_silent(db, pause_id, now))

    async def weights(self) -> tuple[Weights, ...]:
        return await self._reader.read(weight_rows.read_weights)

    async def stored_profiles(self) -> tuple[StoredProfile, ...]:
        return await self._reader.read(kept_rows.read_profiles)

    def _check(self) -> None:
        if not self._path.exists():
            raise StoreDown(f"store {self._path}: no such file")
        with closing(connect_reading(self._path)) as connection:
            if missing(connection, read_migrations()):
                raise StoreUnreadable(f"store {self._path} is of an older version: start `rollpin serve` on it once")


class SqliteStore(SqliteReading):
    """The whole store: a Store by its Protocol, and a lock on the file for as long as it is open."""

    def __init__(self, path: Path | str, durability: Durability = "fsync") -> None:
        super().__init__(path)
        self._lock = FileLock(self._path)
        self._writer = Writer(self._path, connect_writing, durability)
        self._inode = 0

    async def open(self) -> None:
        """Take the file, bring it up to date, and give up what a dead owner had reserved."""
        try:
            await asyncio.to_thread(self._take)
            self._writer.start()
            self._reader.start()
            await self._writer.write(call_rows.give_up_all, durable=True)
            await self._writer.write(delivery_rows.lose_all, durable=True)
        except (sqlite3.Error, OSError) as error:
            await self.close()
            raise store_down(error, self._path) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._writer.stop()
        await self._reader.stop()
        self._lock.release()

    async def ping(self) -> None:
        if not self._is_still_there():
            raise StoreDown(f"store {self._path} was removed or replaced while in use")
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

    async def renew(self, call_ids: Sequence[CallId], lease_until: float) -> None:
        await self._writer.write(lambda db: call_rows.renew(db, call_ids, lease_until), durable=False)

    async def record(self, calls: Sequence[Call]) -> tuple[GroupFlag, ...]:
        flags = await self._writer.write(lambda db: call_rows.record(db, self._memory, calls), durable=True)
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

    async def end_pause(self, at: float) -> None:
        await self._writer.write(lambda db: weight_rows.end_pause(db, at), durable=True)

    async def stay_alive(self, owner: str, until: float, now: float) -> None:
        await self._writer.write(lambda db: weight_rows.stay_alive(db, owner, until, now), durable=False)

    async def leave(self, owner: str) -> None:
        await self._writer.write(lambda db: weight_rows.leave(db, owner), durable=False)

    async def acknowledge(self, owner: str, pause_id: str) -> None:
        await self._writer.write(lambda db: weight_rows.acknowledge(db, owner, pause_id), durable=True)

    async def change_weights(self, seen: Weights, at: float, *, only_if_new: bool = False) -> Weights:
        return await self._writer.write(
            lambda db: weight_rows.change_weights(db, seen, at, only_if_new=only_if_new), durable=True
        )

    async def put_profile(self, stored: StoredProfile) -> None:
        await self._writer.write(lambda db: kept_rows.put_profile(db, stored), durable=True)

    def _is_still_there(self) -> bool:
        """Whether the path still leads to the file that was opened; writing to a removed one would succeed in vain."""
        try:
            return self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def _take(self) -> None:
        self._lock.take()
        create_private(self._path)
        self._inode = self._path.stat().st_ino
        with closing(connect_writing(self._path)) as connection:
            migrate(connection, read_migrations())


async def open_reading(path: Path | str) -> SqliteReading:
    """A store opened to look at, also while a proxy serves from it."""
    reading = SqliteReading(path)
    await reading.open()
    return reading
