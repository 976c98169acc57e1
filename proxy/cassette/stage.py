"""What stands in for engines and for the store while a cassette plays."""

import asyncio
import tempfile
from pathlib import Path

from proxy.engine.gate import Gates
from proxy.engine.pool import Pool
from proxy.engine.upstream import Upstream
from proxy.model import EngineFacts, EngineRef, JsonObject
from proxy.record.sqlite import SqliteStore
from proxy.settings import EngineSettings

# Nobody listens there; a question that only an engine can answer is refused at once.
NOWHERE = "http://127.0.0.1:1"


class Shelf(Pool):
    """A pool with the recorded engine in it, which is never asked."""

    def __init__(self, recorded: JsonObject, upstream: Upstream) -> None:
        super().__init__([EngineSettings(url=NOWHERE)], upstream, require_replayable=False, gates=Gates())
        (engine,) = self.engines
        engine.ref, engine.problem = EngineRef("cassette", NOWHERE, facts_of(recorded)), None

    async def look(self) -> None:
        """There is nothing to look at."""

    async def prove(self) -> None:
        """Nor to prove."""

    async def watch(self) -> None:
        await asyncio.Event().wait()


def facts_of(recorded: JsonObject) -> EngineFacts:
    """What a record tells of its engine; its length and its tokenizer cannot be asked for, so nothing is measured."""
    return EngineFacts(
        kind=recorded["kind"],
        version=recorded["version"],
        model=recorded["model"],
        context_length=None,
        vocabulary=recorded.get("vocabulary"),
        deterministic=recorded["deterministic"],
        takes_exact_prompts=False,
    )


class ScratchStore(SqliteStore):
    """A store in a folder of its own, gone when it is closed: nothing that a cassette plays becomes training data."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rollpin-cassette-")
        super().__init__(Path(self._folder.name) / "scratch.db", durability="wal")

    async def close(self) -> None:
        await super().close()
        self._folder.cleanup()
