"""What a trainer or a reader sees of rollouts and calls; nothing here changes anything."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from proxy.clock import iso
from proxy.control.auth import READ
from proxy.control.bodies import PageQuery, RolloutsQuery
from proxy.control.edge import ControlRoute, Wired, json_answer, query_of
from proxy.errors import NotFound, RolloutClosed
from proxy.model import CallId, GroupFlag, JsonObject, Rollout, RolloutId
from proxy.record.store import PrefixCounts, RolloutCounts, RolloutFilter
from proxy.wiring import Wiring

router = APIRouter(route_class=ControlRoute, dependencies=[READ])


@router.get("/rollouts")
async def list_rollouts(wiring: Wired, query: Annotated[RolloutsQuery, Depends(query_of(RolloutsQuery))]) -> JsonObject:
    """A page of rollouts, in order of creation."""
    narrow = RolloutFilter(query.run, query.group, query.state)
    page = await wiring.store.rollouts(narrow, query.cursor, query.limit)
    return {"rollouts": [rollout_document(rollout) for rollout in page.items], "cursor": page.cursor}


@router.get("/rollouts/{rollout_id}")
async def show_rollout(rollout_id: str, wiring: Wired) -> JsonObject:
    """One rollout with its counts, and whether its capture is complete."""
    rollout = await known_rollout(wiring, rollout_id)
    counts = await wiring.store.counts(rollout.rollout_id)
    flags = await wiring.store.group_flags(rollout.run, rollout.group)
    return {
        **rollout_document(rollout),
        "counts": counts_document(counts),
        "prefixes": prefixes_document(await wiring.store.prefix_counts(rollout.rollout_id)),
        "health": health_document(counts),
        "group_flags": [flag_document(flag) for flag in flags],
    }


@router.get("/rollouts/{rollout_id}/calls")
async def list_calls(
    rollout_id: str, wiring: Wired, query: Annotated[PageQuery, Depends(query_of(PageQuery))]
) -> Response:
    """A page of a rollout's calls, in order of reservation."""
    rollout = await present_rollout(wiring, rollout_id)
    page = await wiring.store.calls(rollout.rollout_id, query.cursor, query.limit)
    return await json_answer({"calls": list(page.items), "cursor": page.cursor})


@router.get("/calls/{call_id}")
async def show_call(call_id: str, wiring: Wired) -> Response:
    """One call."""
    call = await wiring.store.call(CallId(call_id))
    if call is None:
        raise unknown_call(call_id)
    return await json_answer(call)


async def known_rollout(wiring: Wiring, rollout_id: str) -> Rollout:
    """The rollout in whatever state; raises NotFound if the id was never used."""
    rollout = await wiring.store.rollout(RolloutId(rollout_id))
    if rollout is None:
        raise unknown_rollout(rollout_id)
    return rollout


async def present_rollout(wiring: Wiring, rollout_id: str) -> Rollout:
    """The rollout unless it was deleted; raises NotFound or RolloutClosed."""
    rollout = await known_rollout(wiring, rollout_id)
    if rollout.state == "deleted":
        raise RolloutClosed(f"rollout {rollout_id!r} was deleted")
    return rollout


def unknown_rollout(rollout_id: str) -> NotFound:
    return NotFound(f"no rollout has the id {rollout_id[:200]!r}", code="unknown_rollout", param="rollout_id")


def unknown_call(call_id: str) -> NotFound:
    return NotFound(f"no call has the id {call_id[:200]!r}", code="unknown_call", param="call_id")


def flag_document(flag: GroupFlag) -> JsonObject:
    """What is wrong with a rollout's group as a whole."""
    return {"flag": flag.flag, "raised_at": iso(flag.raised_at), "detail": flag.detail}


def rollout_document(rollout: Rollout) -> JsonObject:
    """A rollout as JSON, times in RFC 3339."""
    times = {name: getattr(rollout, name) for name in ("created_at", "expires_at", "finished_at")}
    return {
        "rollout_id": rollout.rollout_id,
        "run": rollout.run,
        "group": rollout.group,
        "sample": rollout.sample,
        "attempt": rollout.attempt,
        "profile": rollout.profile,
        "sampling": dict(rollout.sampling),
        "state": rollout.state,
        **{name: None if time is None else iso(time) for name, time in times.items()},
        "token_budget": rollout.token_budget,
        "metadata": rollout.metadata,
        "outcome": rollout.outcome,
        "revision": rollout.revision,
    }


def counts_document(counts: RolloutCounts) -> JsonObject:
    """The counts as JSON, failures by kind."""
    return {**asdict(counts), "failures": dict(counts.failures)}


def prefixes_document(counts: PrefixCounts) -> JsonObject:
    """The counts as JSON, what was not supplied by reason."""
    return {**asdict(counts), "unsupplied": dict(counts.unsupplied)}


def health_document(counts: RolloutCounts) -> JsonObject:
    """Whether every call of this rollout has an outcome with whole tokens, and what has not."""
    kinds = dict(counts.failures)
    reasons = {
        "no_outcome_yet": counts.reserved > 0,
        "proxy_died": "proxy_died" in kinds,
        "missing_ids": counts.uncaptured > 0 or "missing_ids" in kinds,
        "late_results": counts.late > 0,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    return {"complete": not found, "reasons": found}
