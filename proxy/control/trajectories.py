"""Assembled rollouts: one as a document, or those of closed groups as lines, with cursors that lose none.

A cursor names a place in the list of rollouts before which all was told, and the groups behind it that were told
already. So a group that closes late is not missed, however many that were opened after it closed before it.
"""

import asyncio
import base64
import contextlib
import json
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator

from proxy.canonical import digest
from proxy.clock import ticks
from proxy.control.assembly import settled_trajectory
from proxy.control.auth import READ
from proxy.control.edge import ControlRoute, Wired, json_answer, json_text, query_of
from proxy.control.reads import present_rollout
from proxy.errors import BadAsk, RolloutClosed
from proxy.model import Rollout
from proxy.record.store import Page, RolloutFilter
from proxy.wiring import Wiring

router = APIRouter(route_class=ControlRoute, dependencies=[READ])

# Cursors move on by whole pages, so a page is what a cursor may have to remember of groups at the least.
ROLLOUTS_A_PAGE = 100
# Hex digits that tell a group within a cursor: 64 bits.
MARK_DIGITS = 16
LOOK_AGAIN_S = 1.0
# Looking takes at most this share of a follower's time, however many rollouts wait for their group to close.
LOOKING_SHARE = 0.1


class TrajectoryQuery(BaseModel):
    """Query of GET /rollouts/{rollout_id}/trajectory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include: Literal["all"] | None = None


class TrajectoriesQuery(BaseModel):
    """Query of GET /trajectories."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str | None = None
    group: str | None = None
    since: str | None = None
    follow: float = Field(0, ge=0)
    """Seconds during which groups that close are told as they do; `true` is as long as the reader stays."""
    require_outcome: bool = False

    @field_validator("follow", mode="before")
    @classmethod
    def _in_words(cls, value: object) -> object:
        return {"true": math.inf, "false": 0}.get(value, value) if isinstance(value, str) else value

    @property
    def scope(self) -> list[str | None]:
        """What a cursor is good for."""
        return [self.run, self.group]


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come."""

    floor: str | None = None
    """The store's cursor before which everything was told."""
    told: frozenset[str] = frozenset()
    """Marks of groups behind it that were told."""

    def text(self, query: TrajectoriesQuery) -> str:
        value = json.dumps([query.scope, self.floor, sorted(self.told)], separators=(",", ":"))
        return base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Listing:
    """The rollouts behind a cursor, and the groups that they make."""

    floor: str | None
    """The store's cursor behind which it begins."""
    pages: tuple[Page[Rollout], ...]
    groups: Mapping[str, tuple[Rollout, ...]]
    """Members by sample and attempt, under a mark that changes when the group gets another; groups by age."""


@router.get("/rollouts/{rollout_id}/trajectory")
async def show_trajectory(
    rollout_id: str, wiring: Wired, query: Annotated[TrajectoryQuery, Depends(query_of(TrajectoryQuery))]
) -> Response:
    """One rollout as it stands, open or closed."""
    rollout = await present_rollout(wiring, rollout_id)
    document = await settled_trajectory(wiring, rollout, include_all=query.include == "all")
    if document is None:
        raise RolloutClosed(f"rollout {rollout_id!r} was deleted")
    return await json_answer(document)


@router.get("/trajectories")
async def list_trajectories(
    wiring: Wired, query: Annotated[TrajectoriesQuery, Depends(query_of(TrajectoriesQuery))]
) -> StreamingResponse:
    """The rollouts of closed groups, a line each; the last line's cursor is where to go on."""
    cursor = read_cursor(query)
    return StreamingResponse(_lines(wiring, query, cursor), media_type="application/x-ndjson")


def read_cursor(query: TrajectoriesQuery) -> Cursor:
    """The cursor that a line of the same query gave; raises BadAsk on anything else."""
    if query.since is None:
        return Cursor()
    cursor = _decoded(query.since)
    if cursor is None or cursor.text(query) != query.since:
        raise BadAsk("since: not a cursor that a line of the same run and group gave", param="since")
    return cursor


def _decoded(text: str) -> Cursor | None:
    try:
        _scope, floor, told = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return Cursor(floor, frozenset(told)) if floor is None or floor.isdigit() else None
    except (ValueError, TypeError, AttributeError):
        return None


async def _lines(wiring: Wiring, query: TrajectoriesQuery, cursor: Cursor) -> AsyncIterator[bytes]:
    """Closed groups as lines, again and again while they are followed; blank ones while there is nothing to tell."""
    until, beat_s = ticks() + query.follow, wiring.settings.timeouts.heartbeat_after_s
    spoken = ticks()
    while True:
        looked = ticks()
        listing, told = await _listing(wiring, query, cursor.floor), set(cursor.told)
        pause_s = max(LOOK_AGAIN_S, (ticks() - looked) / LOOKING_SHARE)
        for mark, members in listing.groups.items():
            if mark in told or not is_ready(members, require_outcome=query.require_outcome):
                continue
            told.add(mark)
            after = cursor_after(listing, told)
            async for line in _group_lines(wiring, query, members, cursor, after):
                yield line
            cursor, spoken = after, ticks()
        if wiring.stopping.is_set() or ticks() >= until:
            return
        if ticks() - spoken >= beat_s:
            yield b"\n"
            spoken = ticks()
        await _pause(wiring, min(pause_s, until - ticks(), spoken + beat_s - ticks()))


async def _pause(wiring: Wiring, seconds: float) -> None:
    """Wait, and no longer once the proxy stops."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0, seconds)):
            await wiring.stopping.wait()


async def _group_lines(
    wiring: Wiring, query: TrajectoriesQuery, members: Sequence[Rollout], before: Cursor, after: Cursor
) -> AsyncIterator[bytes]:
    """Only a group's last line moves the cursor: who goes on from one before it is told the whole group again."""
    for member in members:
        document = await settled_trajectory(wiring, member)
        if document is not None:
            cursor = after if member is members[-1] else before
            yield await json_text({"cursor": cursor.text(query), "trajectory": document}) + b"\n"


def is_ready(members: Sequence[Rollout], *, require_outcome: bool) -> bool:
    """Whether nothing more is to come of a group."""
    return all(one.state != "open" and (one.outcome is not None or not require_outcome) for one in members)


def cursor_after(listing: Listing, told: Collection[str]) -> Cursor:
    """The shortest cursor that says which groups were told; its floor rises over pages of told ones alone."""
    floor, pages = listing.floor, list(listing.pages)
    waiting = {one.rollout_id for mark, members in listing.groups.items() if mark not in told for one in members}
    while pages and pages[0].cursor is not None and waiting.isdisjoint(one.rollout_id for one in pages[0].items):
        floor = pages.pop(0).cursor
    behind = {one.rollout_id for page in pages for one in page.items}
    marks = (mark for mark, members in listing.groups.items() if any(one.rollout_id in behind for one in members))
    return Cursor(floor, frozenset(told).intersection(marks))


async def _listing(wiring: Wiring, query: TrajectoriesQuery, floor: str | None) -> Listing:
    pages, cursor = list[Page[Rollout]](), floor
    while not pages or cursor is not None:
        page = await wiring.store.rollouts(RolloutFilter(query.run, query.group), cursor, ROLLOUTS_A_PAGE)
        pages.append(page)
        cursor = page.cursor
    groups = defaultdict[tuple[str, str], list[Rollout]](list)
    for page in pages:
        for rollout in page.items:
            groups[rollout.run, rollout.group].append(rollout)
    return Listing(floor, tuple(pages), {_mark(members): _in_order(members) for members in groups.values()})


def _mark(members: Sequence[Rollout]) -> str:
    """Names a group by its newest rollout."""
    newest = members[-1]
    return digest([newest.run, newest.group, newest.rollout_id]).removeprefix("sha256:")[:MARK_DIGITS]


def _in_order(members: Sequence[Rollout]) -> tuple[Rollout, ...]:
    return tuple(sorted(members, key=lambda rollout: (rollout.sample, rollout.attempt)))
