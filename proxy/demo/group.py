"""What a trainer does: open a group, let the agents work, give rewards, and read the records."""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx

from proxy.demo.agent import ANSWER, model_at, solve
from proxy.model import JsonObject

GROUP = "sum-17-23"
SIZE = 4


@dataclass(frozen=True, slots=True)
class SampleRun:
    """One rollout of the group and what is on record of it."""

    sample: int
    rollout_id: str
    answer: str
    reward: float
    calls: tuple[JsonObject, ...]
    """Its `rollpin.call/1` documents."""
    branches: tuple[JsonObject, ...] = ()
    """What there is to train on, as its `rollpin.trajectory/1` document tells."""

    def sampled_ids(self) -> tuple[tuple[int, ...], ...]:
        """The generated tokens, call by call."""
        return tuple(tuple(call["completion_token_ids"]) for call in self.calls)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much of one run another has drawn again."""

    calls: int
    same_calls: int
    ids: int
    same_ids: int

    @property
    def is_reproduced(self) -> bool:
        """Every token of every call."""
        return self.calls > 0 and (self.calls, self.ids) == (self.same_calls, self.same_ids)


async def run_group(trainer: httpx.AsyncClient, run: str) -> tuple[SampleRun, ...]:
    """All samples at once, as a trainer would have them."""
    opened = await trainer.post("/groups", json={"group": GROUP, "size": SIZE, "run": run})
    rollouts = opened.raise_for_status().json()["rollouts"]
    return tuple(await asyncio.gather(*(_run_sample(trainer, rollout) for rollout in rollouts)))


async def _run_sample(trainer: httpx.AsyncClient, rollout: JsonObject) -> SampleRun:
    async with model_at(rollout["base_url"], rollout["api_key"]) as ask:
        messages = await solve(ask)
    answer, name = str(messages[-1].get("content") or ""), rollout["rollout_id"]
    reward = float(ANSWER in answer)
    (await trainer.put(f"/rollouts/{name}/outcome", json={"reward": reward})).raise_for_status()
    (await trainer.post(f"/rollouts/{name}/finish")).raise_for_status()
    calls = (await trainer.get(f"/rollouts/{name}/calls")).raise_for_status().json()["calls"]
    branches = (await trainer.get(f"/rollouts/{name}/trajectory")).raise_for_status().json()["branches"]
    return SampleRun(rollout["sample"], name, answer, reward, tuple(calls), tuple(branches))


async def replay(trainer: httpx.AsyncClient, run: Sequence[SampleRun]) -> tuple[JsonObject, ...]:
    """A verdict on each call of a run, drawn again from its record."""
    answers = [await trainer.post(f"/rollouts/{sample.rollout_id}/replay", json={}) for sample in run]
    lines = [json.loads(line) for answer in answers for line in answer.raise_for_status().text.splitlines()]
    return tuple(line["verdict"] for line in lines if "verdict" in line)


def compare(first: Sequence[SampleRun], second: Sequence[SampleRun]) -> Verdict:
    """The recorded ids of two runs, call by call and place by place."""
    ours, theirs = _calls(first), _calls(second)
    pairs = list(zip(ours, theirs, strict=False))
    return Verdict(
        calls=max(len(ours), len(theirs)),
        same_calls=sum(one == other for one, other in pairs),
        ids=max(sum(map(len, ours)), sum(map(len, theirs))),
        same_ids=sum(a == b for one, other in pairs for a, b in zip(one, other, strict=False)),
    )


def digest_of(runs: Iterable[SampleRun]) -> str:
    """A short name for all sampled ids, in order."""
    text = ";".join(",".join(map(str, ids)) for ids in _calls(runs))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _calls(runs: Iterable[SampleRun]) -> list[tuple[int, ...]]:
    return [ids for run in runs for ids in run.sampled_ids()]
