"""What every check works with: one engine, the draws that were made of it, and whether it may be disturbed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.engine.answer import Answer
from proxy.engine.gate import minds_classes
from proxy.engine.lab import Lab
from proxy.engine.look import Look
from proxy.engine.proof import Drawn
from proxy.engine.upstream import Upstream
from proxy.errors import EngineFault
from proxy.model import EngineFacts, JsonObject, Profile, Proof

Verdict = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check came to."""

    verdict: Verdict
    what: str
    """What was seen, in one sentence without a full stop."""
    remedy: str | None = None
    """What mends it, where the check's own remedy does not fit."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One engine on the bench."""

    lab: Lab
    beside: Lab
    """The same engine behind a gate of its own, for draws that are to meet."""
    upstream: Upstream
    profiles: Sequence[Profile]
    require_replayable: bool
    later_system: Literal["keep", "as_user"]
    look: Look
    drawn: Drawn
    proof: Proof

    @property
    def facts(self) -> EngineFacts:
        return self.lab.engine.facts

    def worse(self) -> Verdict:
        """What costs replay: a failure where replay is required."""
        return "fail" if self.require_replayable else "warn"

    async def get(self, path: str) -> Any:
        """The JSON at a path of the engine's, or None."""
        engine = self.lab.engine
        answer = await self.upstream.question(engine.url, path, api_key=engine.api_key)
        return answer.body if answer.status == 200 else None

    async def ask(self, path: str, body: JsonObject) -> Answer:
        """A question about the engine's model."""
        engine = self.lab.engine
        told = {"model": self.facts.model} | body
        return await self.upstream.question(engine.url, path, told, api_key=engine.api_key)

    async def refused_ask(self, more: JsonObject) -> str | None:
        """The engine's refusal of a call that nothing can run of; None where it was no refusal."""
        answer = await self.look.refused_ask(self.facts, more)
        return answer.text if answer.status == 400 else None

    async def must_not_be_disturbed(self) -> str | None:
        """Why no call of another class may be made here; None where it harms nobody."""
        if not minds_classes(self.lab.engine):
            return None
        running = running_calls(await self.get("/v1/loads"))
        if running is None:
            return "it does not tell whether other calls run, which this would disturb"
        return f"{running} other calls run, which this would disturb" if running else None


def running_calls(loads: Any) -> int | None:
    """Calls that a SGLang runs or has waiting; None where it does not tell."""
    try:
        return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in loads["loads"])
    except (KeyError, TypeError, ValueError):
        return None


def in_words(fault: EngineFault) -> str:
    """A fault, short enough for a table."""
    return f"the engine answered: {fault.message[:160]}"
