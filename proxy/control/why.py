"""Why calls stand where they stand, as a document: the findings of assembly, and tokens with what they say."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from proxy.control.assembly import facts_of, rules_of
from proxy.control.auth import READ
from proxy.control.edge import ControlRoute, Wired, json_answer, query_of
from proxy.control.reads import present_rollout, unknown_call
from proxy.engine.texts import texts_of
from proxy.model import CallId, EngineRef, JsonObject, Rollout
from proxy.trajectory.assemble import Trajectory, assemble_calls
from proxy.trajectory.why import CallReport, Difference, Finding, report_calls, report_rollout
from proxy.wiring import Wiring

WHY_SCHEMA = "rollpin.why/1"
NO_ENGINE = "no engine that is well has the tokenizer that drew the call"
NO_ANSWER = "the engine did not tell what the ids say"
TOO_MANY = "there is too much to ask the engine for: ask for this call alone"
# Each is a question to an engine that has other things to do.
MOST_TEXTS = 500

router = APIRouter(route_class=ControlRoute, dependencies=[READ])


class WhyQuery(BaseModel):
    """Query of GET /rollouts/{rollout_id}/why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call: CallId | None = None


@router.get("/rollouts/{rollout_id}/why")
async def show_why(rollout_id: str, wiring: Wired, query: Annotated[WhyQuery, Depends(query_of(WhyQuery))]) -> Response:
    """Every fork, refused prefix, exclusion and lost parent of a rollout; or all that there is to say of one call."""
    rollout = await present_rollout(wiring, rollout_id)
    trajectory, reports = await reports_of(wiring, rollout, query.call)
    if query.call is not None and not reports:
        raise unknown_call(query.call)
    texts = await texts_for(wiring, reports)
    return await json_answer(why_document(trajectory, reports, texts))


async def reports_of(
    wiring: Wiring, rollout: Rollout, only: CallId | None = None
) -> tuple[Trajectory, list[CallReport]]:
    """The assembled rollout, and what there is to say of its calls."""
    calls, rules = await facts_of(wiring, rollout), rules_of(wiring)

    def work() -> tuple[Trajectory, list[CallReport]]:
        trajectory = assemble_calls(rollout, calls, rules)
        return trajectory, report_calls(trajectory, calls, only)

    return await run_in_threadpool(work)


@dataclass(frozen=True, slots=True)
class Texts:
    """What the ids around a difference say."""

    told: Mapping[int, str]
    engine: str | None
    missing: str | None = None
    """Why they are not told."""


async def texts_for(wiring: Wiring, reports: Sequence[CallReport]) -> dict[CallId, Texts]:
    """For each call whose prompt differs what an engine says of its ids, as far as it can be asked."""
    differing = {report.call.call_id: report for report in reports if report.difference and report.difference.differs}
    engines, wanted = dict[CallId, EngineRef](), defaultdict[str, set[int]](set)
    found = dict[CallId, Texts]()
    for call_id, report in differing.items():
        engine, ids = engine_of(wiring, report), ids_around(report.difference)
        if engine is None:
            found[call_id] = Texts({}, None, NO_ENGINE)
        elif len(wanted[engine.name] | ids) > MOST_TEXTS:
            found[call_id] = Texts({}, None, TOO_MANY)
        else:
            engines[call_id] = engine
            wanted[engine.name] |= ids
    for engine in {engine.name: engine for engine in engines.values()}.values():
        told = await texts_of(wiring.upstream, engine, sorted(wanted[engine.name]))
        texts = Texts(told, engine.name) if told else Texts({}, None, NO_ANSWER)
        found |= {call_id: texts for call_id, asked in engines.items() if asked.name == engine.name}
    return found


def ids_around(difference: Difference | None) -> set[int]:
    return {*difference.parent_ids, *difference.prompt_ids} if difference else set()


def engine_of(wiring: Wiring, report: CallReport) -> EngineRef | None:
    """A well engine of the same tokenizer: of the same fingerprint, or where none was recorded the very same engine."""
    drawn_by: JsonObject = report.call.document["engine"] or {}
    print_ = drawn_by.get("fingerprint")
    for engine in wiring.pool.engines:
        if engine.ref is None or engine.problem is not None:
            continue
        facts = engine.ref.facts
        same = facts.fingerprint == print_ if print_ else engine.ref.name == drawn_by.get("name")
        if same and (facts.kind, facts.model) == (drawn_by.get("kind"), drawn_by.get("model")):
            return engine.ref
    return None


NO_TEXTS = Texts({}, None)


def why_document(trajectory: Trajectory, reports: Sequence[CallReport], texts: Mapping[CallId, Texts]) -> JsonObject:
    """`rollpin.why/1`; docs/control-plane.md explains each field."""
    reasons = [{"reason": one.word, "meaning": one.meaning, "remedy": one.remedy} for one in report_rollout(trajectory)]
    return {
        "schema": WHY_SCHEMA,
        "rollout_id": trajectory.rollout.rollout_id,
        "state": trajectory.rollout.state,
        "trainable": {"value": trajectory.trainable.value, "reasons": reasons},
        "health": {**asdict(trajectory.health), "reasons": list(trajectory.health.reasons)},
        "calls": [_call(report, texts.get(report.call.call_id, NO_TEXTS)) for report in reports],
    }


def _call(report: CallReport, texts: Texts) -> JsonObject:
    call, branch = report.call, report.branch
    return {
        "number": call.order,
        "call_id": call.call_id,
        "state": call.document["state"],
        "branch": branch and {"branch_id": branch.branch_id, "kind": branch.kind, "lane": branch.lane},
        "parent": {
            "number": report.parent and report.parent.order,
            "call_id": report.parent and report.parent.call_id,
            "outcome": call.parent_outcome,
            "reason": call.parent_reason,
        },
        "findings": [_finding(finding) for finding in report.findings],
        "difference": report.difference and _difference(report.difference, texts),
    }


def _finding(finding: Finding) -> JsonObject:
    return {
        "what": finding.what,
        "reason": finding.reason.word,
        "sentence": finding.sentence,
        "detail": finding.detail,
        "remedy": finding.reason.remedy,
    }


def _difference(difference: Difference, texts: Texts) -> JsonObject:
    return {
        "parent_call_id": difference.parent_id,
        "parent_tokens": difference.parent_length,
        "prompt_tokens": difference.prompt_length,
        "shared": difference.shared,
        "differs": difference.differs,
        "parent": _window(difference.start, difference.parent_ids, texts.told),
        "prompt": _window(difference.start, difference.prompt_ids, texts.told),
        "texts_by": texts.engine,
        "texts_missing": texts.missing,
    }


def _window(start: int, ids: Sequence[int], texts: Mapping[int, str]) -> list[JsonObject]:
    return [{"place": place, "id": token, "text": texts.get(token)} for place, token in enumerate(ids, start)]
