"""What the live tests share: an engine with its proxy, and the questions that both are asked.

Nothing here goes by the clock. What a test waits for is a count or a state, and how far an engine has got is told by
the calls that it has answered meanwhile; seconds only bound what would never come.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.engines.reference_client import Row, reference_logprobs
from tests.live.engines.start import Engine
from tests.live.speaking import NO_END, Json
from tests.served import RolloutClient, ServedProxy, served, settings_for

# More than the slowest machine needs for anything that comes at all.
PATIENCE_S = 300.0
LOOK_EVERY_S = 0.05
# Recorded logprobs may differ from transformers' by this much, in nats.
LOGPROB_TOLERANCE = 1e-4

Tell = Callable[[str], None]
"""Keeps a line for the end of the run, where the figures that were seen stand together."""

AS_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Site:
    """A real engine and the proxy in front of it."""

    engine: Engine
    proxy: ServedProxy

    @property
    def kind(self) -> str:
        return self.engine.kind

    def rollout(self, group: str, sample: int = 0, **fields: Any) -> RolloutClient:
        """A new rollout in a run of its own, so that a group and sample can be drawn again."""
        return patient(self.proxy.rollout(run=f"run-{next(_numbers)}", group=group, sample=sample, **fields))

    def order(self, path: str, body: Json | None = None) -> Json:
        """Tell the control plane something that it must do."""
        answer = self.proxy.control.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def direct(self, body: Json) -> Json:
        """The engine's own answer, without the proxy."""
        answer = httpx.post(f"{self.engine.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def is_ready(self, *, proven: bool) -> bool:
        """Whether the proxy has found its engine, and put it to its probe where it is to."""
        (engine,) = self.proxy.control.get("/engines").json()["engines"]
        return engine["problem"] is None and (engine["probe"] is not None or not proven)

    def running_requests(self) -> int:
        """How many requests the engine is busy with, by its own count, which a busy vLLM tells late."""
        if self.kind == "sglang":
            loads = httpx.get(f"{self.engine.url}/v1/loads", timeout=PATIENCE_S).json()["loads"]
            return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
        metrics = httpx.get(f"{self.engine.url}/metrics", timeout=PATIENCE_S).text
        return int(sum(float(n) for n in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", metrics, re.MULTILINE)))

    def works_on(self, tokens: int = 24) -> None:
        """Return once the engine has drawn so many tokens more: a call behind those in flight has come to its end."""
        answer = self.rollout("meanwhile").chat("go on", max_tokens=tokens, **NO_END)
        assert answer.status_code == 200, answer.text

    def all_calls(self) -> list[Json]:
        """The calls of all rollouts so far."""
        rollouts = self.proxy.control.get("/rollouts", params={"limit": 500}).json()["rollouts"]
        return [call for rollout in rollouts for call in self.proxy.calls(rollout["rollout_id"])]


@contextlib.contextmanager
def site_before(engine: Engine, folder: Path, **settings: Any) -> Iterator[Site]:
    """A proxy before an engine for the length of the block, and clients that are in no hurry."""
    with served(settings_for(folder, engine.url, **settings)) as proxy:
        proxy.control.timeout = PATIENCE_S
        site = Site(engine, proxy)
        until(lambda: site.is_ready(proven=settings.get("prove_engines", False)))
        yield site


def patient(client: RolloutClient) -> RolloutClient:
    """The same client, which waits for as long as a slow machine may take."""
    client.http.timeout = PATIENCE_S
    return client


def tokens_of(client: RolloutClient, text: str, **fields: Any) -> tuple[int, ...]:
    """The sampled ids of one whole call."""
    answer = client.chat(text, **fields)
    assert answer.status_code == 200, answer.text
    return tuple(client.calls()[-1]["completion_token_ids"])


def at_once(work: Sequence[Callable[[], Any]], most: int | None = None) -> list[Any]:
    """Everything at the same time, or so many at a time in their order; results in order."""
    with ThreadPoolExecutor(most or len(work)) as threads:
        return [future.result() for future in [threads.submit(one) for one in work]]


def until(claim: Callable[[], bool]) -> None:
    """Wait until a claim holds; fail when it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(LOOK_EVERY_S)


def plain(calls: Sequence[Json]) -> list[Json]:
    """Calls that came to their end and whose tokens are plain samples: of steered ones engines tell other logprobs."""
    return [call for call in calls if call["state"] == "done" and not call["sampling"]["constrained"]]


def largest_difference(engine: Engine, calls: Sequence[Json]) -> float:
    """Between the recorded logprobs and those of transformers over the recorded ids on the same weights."""
    rows = [Row(prompt=call["prompt_token_ids"], completion=call["completion_token_ids"]) for call in calls]
    expected = reference_logprobs(engine, rows)
    return max(
        abs(ours - theirs)
        for call, row in zip(calls, expected, strict=True)
        for ours, theirs in zip(call["logprobs"], row, strict=True)
    )
