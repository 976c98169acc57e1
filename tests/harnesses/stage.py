"""One performance: an engine with a play, Rollpin before it, a rollout, and a harness that is let loose on it."""

import contextlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.sim.script import Fault
from proxy.sim.server import SimEngine
from tests.harnesses.harness import Aim, Harness, Json
from tests.harnesses.heard import Heard
from tests.harnesses.kit.running import Run, run_harness
from tests.harnesses.script import ANSWER, NOTE, READ, Play, parts_for
from tests.served import ServedProxy, served, settings_for

LONG_CONTEXT = 4_000_000
"""The simulated model reads bytes, and a harness's tools alone have a hundred thousand."""
HEARTBEAT_S = 0.2
"""Of the proxy that holds streams, so that a break is told after signs of life, when the status is out already."""
HELD: Json = {"hold_streams": True, "timeouts": {"heartbeat_after_s": HEARTBEAT_S}}
STYLING = re.compile(r"\x1b\[[0-9;]*m|\s+")


@dataclass(frozen=True, slots=True)
class Show:
    """What a harness did, and what the model heard of it."""

    run: Run
    heard: tuple[Heard, ...]
    engine_requests: int

    @property
    def answered(self) -> bool:
        """It ended well and told what only the note says."""
        return self.run.status == 0 and ANSWER in STYLING.sub(" ", self.run.output)


@dataclass(frozen=True, slots=True)
class Performance(Show):
    """A show of which Rollpin has a record."""

    calls: tuple[Json, ...]
    trajectory: Json


class Stage:
    """An engine and a proxy, used by one harness at a time."""

    def __init__(self, folder: Path, engine: SimEngine, proxy: ServedProxy, holding: ServedProxy, cast: "Cast") -> None:
        self._folder, self._engine, self._cast = folder, engine, cast
        self._proxy, self._holding = proxy, holding
        self._count = 0
        self._tasks: dict[str, Performance] = {}

    def task(self, harness: Harness) -> Performance:
        """The plain task, done once for all tests that look at it."""
        if harness.name not in self._tasks:
            self._tasks[harness.name] = self.perform(harness)
        return self._tasks[harness.name]

    def perform(
        self,
        harness: Harness,
        task: str = READ,
        *,
        trouble: Fault | None = None,
        timeout_s: int | None = None,
        held: bool = False,
    ) -> Performance:
        """Let a harness do a task through Rollpin; `trouble` befalls the second turn of the task."""
        proxy = self._holding if held else self._proxy
        rollout = proxy.rollout(group=f"{harness.name}-{self._count}")
        aim = Aim(rollout.created["base_url"], rollout.created["api_key"], timeout_s)
        show = self._let_loose(harness, task, aim, trouble)
        calls = tuple(proxy.settled_calls(rollout.rollout_id))
        told = proxy.control.get(f"/rollouts/{rollout.rollout_id}/trajectory", params={"include": "all"})
        assert told.status_code == 200, told.text
        return Performance(show.run, show.heard, show.engine_requests, calls, told.json())

    def perform_without_rollpin(
        self, harness: Harness, *, trouble: Fault | None = None, timeout_s: int | None = None
    ) -> Show:
        """Let it do the plain task straight at the engine."""
        return self._let_loose(harness, READ, Aim(f"{self._engine.url}/v1", "none", timeout_s), trouble)

    def _let_loose(self, harness: Harness, task: str, aim: Aim, trouble: Fault | None) -> Show:
        self._count += 1
        folder = self._folder / f"{harness.name}-{self._count}"
        (folder / "work").mkdir(parents=True)
        (folder / "work" / "note.txt").write_text(f"{NOTE}\n")
        before = len(self._engine.requests)
        play = self._cast.play(harness)
        if trouble:
            self._engine.script_when(lambda body: play.is_under_way(body, task), trouble)
        setup = harness.prepare(aim, task)
        run = run_harness(
            setup.command, folder, env={**setup.quiet, **setup.env}, files=setup.files, limit_s=harness.limit_s
        )
        return Show(run, tuple(play.heard), len(self._engine.requests) - before)


class Cast:
    """Stands where the simulated engine expects its scenario, and plays whatever is on."""

    def __init__(self) -> None:
        self._play = Play({})

    def play(self, harness: Harness) -> Play:
        """The next play."""
        self._play = Play(parts_for(harness))
        return self._play

    def says(self, body: Json) -> Any:
        """What the scenario would say."""
        return self._play.says(body)


@contextlib.contextmanager
def set_up(folder: Path) -> Iterator[Stage]:
    """A stage for as long as the block lasts."""
    cast = Cast()
    engine = SimEngine("sglang", max_model_len=LONG_CONTEXT, scenario=cast, tokens_per_event=8)  # type: ignore[arg-type]
    with engine, running(folder / "live", engine) as proxy, running(folder / "held", engine, **HELD) as holding:
        yield Stage(folder, engine, proxy, holding, cast)


def running(folder: Path, engine: SimEngine, **settings: Any) -> AbstractContextManager[ServedProxy]:
    """A proxy with a folder of its own."""
    folder.mkdir()
    return served(settings_for(folder, engine.url, **settings))
