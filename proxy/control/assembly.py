"""A rollout of the store, assembled under the rules of the settings: beside the event loop, page by page."""

import re
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from proxy.model import JsonObject, Rollout
from proxy.record.store import Page
from proxy.settings import Settings, SideCallSettings
from proxy.trajectory.assemble import assemble_calls
from proxy.trajectory.call_facts import CallFacts, read_calls
from proxy.trajectory.documents import trajectory_parts
from proxy.trajectory.rules import KNOWN_CALLS, TITLE_CALL, SideRule, TrajectoryRules
from proxy.wiring import Wiring

# A page is held as documents, whose lists of ids take ten times the room of packed ones.
CALLS_A_PAGE = 32
# An outcome that is set while a long rollout is read makes the reading begin anew, so often at most.
MOST_READINGS = 3


async def settled_trajectory(wiring: Wiring, rollout: Rollout, *, include_all: bool = False) -> JsonObject | None:
    """A rollout's trajectory, of the revision that it names; None where it was deleted meanwhile."""
    for _ in range(MOST_READINGS):
        document = await trajectory_of(wiring, rollout, include_all=include_all)
        now = await wiring.store.rollout(rollout.rollout_id)
        if now is None or now.state == "deleted":
            return None
        if now.revision == rollout.revision:
            return document
        rollout = now
    return document


async def trajectory_of(wiring: Wiring, rollout: Rollout, *, include_all: bool = False) -> JsonObject:
    """A rollout's calls, assembled, its branches yet to be made; beside the event loop, since that takes its time."""
    calls, rules = await facts_of(wiring, rollout), rules_of(wiring)

    def work() -> JsonObject:
        return trajectory_parts(assemble_calls(rollout, calls, rules), include_all=include_all)

    return await run_in_threadpool(work)


async def facts_of(wiring: Wiring, rollout: Rollout) -> list[CallFacts]:
    """What assembly reads of a rollout's calls, page by page, so that no more than a page is held as documents."""
    calls = list[CallFacts]()
    async for page in _calls(wiring, rollout):
        calls += await run_in_threadpool(read_calls, page.items, len(calls))
    return calls


def rules_of(wiring: Wiring) -> TrajectoryRules:
    """The rules that the settings put in force."""
    settings = wiring.settings
    return TrajectoryRules(
        side_rules=side_rules(settings),
        other_model_is_side=settings.side_other_model,
        side_uncertain=settings.side_uncertain,
        constrained_training=settings.constrained_training,
    )


def side_rules(settings: Settings) -> tuple[SideRule, ...]:
    """One's own rules first, so that they can keep what a built-in one would take out."""
    titles = (TITLE_CALL,) if settings.side_title_calls else ()
    known = KNOWN_CALLS if settings.side_known_calls else ()
    return (*map(_rule, settings.side_calls), *titles, *known)


def _rule(told: SideCallSettings) -> SideRule:
    return SideRule(
        told.name,
        told.action,
        told.requested_model,
        told.system_contains,
        None if told.system_matches is None else re.compile(told.system_matches),
        tuple(told.signals.items()),
        told.has_tools,
        told.most_messages,
        told.alone,
    )


async def _calls(wiring: Wiring, rollout: Rollout) -> AsyncIterator[Page[JsonObject]]:
    page = await wiring.store.calls(rollout.rollout_id, None, CALLS_A_PAGE)
    yield page
    while page.cursor is not None:
        page = await wiring.store.calls(rollout.rollout_id, page.cursor, CALLS_A_PAGE)
        yield page
