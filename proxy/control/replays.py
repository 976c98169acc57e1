"""Replay and rescore of recorded calls, told line by line as results come."""

import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from proxy.control.auth import ADMIN
from proxy.control.edge import ControlRoute, Wired, body_of
from proxy.control.reads import present_rollout, unknown_call
from proxy.model import CallId, JsonObject, Rollout
from proxy.replay.mismatch import RESCORE_WORDS, Mismatch, mismatch_summary, rescore_document
from proxy.replay.rescore import rescore_rollout
from proxy.replay.story import replay_rollout
from proxy.replay.verdict import VerdictWord, summary_document, verdict_document
from proxy.wiring import Wiring

router = APIRouter(route_class=ControlRoute, dependencies=[ADMIN])

NDJSON = "application/x-ndjson"
MOST_CALLS = 10_000


class _Calls(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    calls: list[str] | None = Field(None, max_length=MOST_CALLS)
    """Only these; all without it."""


class ReplayBody(_Calls):
    """Body of POST /rollouts/{rollout_id}/replay."""

    tolerance: float | None = Field(None, ge=0)


class RescoreBody(_Calls):
    """Body of POST /rollouts/{rollout_id}/rescore."""

    logprobs: bool = False
    """Whether the logprobs themselves are told."""


@router.post("/rollouts/{rollout_id}/replay")
async def replay(
    rollout_id: str, wiring: Wired, asked: Annotated[ReplayBody, Depends(body_of(ReplayBody))]
) -> StreamingResponse:
    """Draw a rollout's calls again: a line of what is to come, a verdict for each call, and a summary at the end."""
    rollout = await asked_rollout(rollout_id, wiring, asked)
    return StreamingResponse(_replay_lines(rollout, wiring, asked), media_type=NDJSON)


@router.post("/rollouts/{rollout_id}/rescore")
async def rescore(
    rollout_id: str, wiring: Wired, asked: Annotated[RescoreBody, Depends(body_of(RescoreBody))]
) -> StreamingResponse:
    """Logprobs of a rollout's recorded tokens under the weights of now: a line for each call, and a summary."""
    rollout = await asked_rollout(rollout_id, wiring, asked)
    return StreamingResponse(_rescore_lines(rollout, wiring, asked), media_type=NDJSON)


async def asked_rollout(rollout_id: str, wiring: Wiring, asked: _Calls) -> Rollout:
    """The rollout with all the calls that are named; raises NotFound or RolloutClosed."""
    rollout = await present_rollout(wiring, rollout_id)
    for call_id in asked.calls or ():
        call = await wiring.store.call(CallId(call_id))
        if call is None or call["rollout_id"] != rollout_id:
            raise unknown_call(call_id)
    return rollout


async def calls_to_come(rollout: Rollout, wiring: Wiring, asked: _Calls) -> int:
    """How many lines will follow, so that a reader can show progress."""
    if asked.calls is not None:
        return len(set(asked.calls))
    return (await wiring.store.counts(rollout.rollout_id)).calls


async def _replay_lines(rollout: Rollout, wiring: Wiring, asked: ReplayBody) -> AsyncIterator[bytes]:
    words, largest = list[VerdictWord](), 0.0
    yield line({"rollout_id": rollout.rollout_id, "calls": await calls_to_come(rollout, wiring, asked)})
    async for call, verdict in replay_rollout(rollout, wiring, only=asked.calls or (), tolerance=asked.tolerance):
        words.append(verdict.word)
        largest = max(largest, verdict.difference.largest)
        yield line({"verdict": verdict_document(verdict, call)})
    yield line({"summary": summary_document(words, largest)})


async def _rescore_lines(rollout: Rollout, wiring: Wiring, asked: RescoreBody) -> AsyncIterator[bytes]:
    counts, whole = dict.fromkeys(RESCORE_WORDS, 0), Mismatch()
    yield line({"rollout_id": rollout.rollout_id, "calls": await calls_to_come(rollout, wiring, asked)})
    async for call, rescored in rescore_rollout(rollout, wiring, only=asked.calls or ()):
        counts[rescored.word] += 1
        whole = whole.plus(rescored.mismatch)
        yield line({"rescore": rescore_document(rescored, call, with_logprobs=asked.logprobs)})
    yield line({"summary": mismatch_summary(counts, whole)})


def line(document: JsonObject) -> bytes:
    """One line of JSON, in ASCII."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
