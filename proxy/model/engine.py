"""Who answers: an engine of the pool, what it says of itself, what its draws proved, and what it is sent."""

from dataclasses import dataclass, field
from typing import Literal

from proxy.model.words import JsonObject

EngineKind = Literal["vllm", "sglang", "nemo_rl"]

LogprobsMode = Literal["raw", "processed"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What a few tokens proved of an engine (engine/proof.py)."""

    faults: tuple[str, ...] = ()
    """What its ids or seeds do not hold to, in sentences; empty where the probe was passed."""
    takes_exact_prompts: bool | None = None
    """Whether exact prompt ids came back; None where none were given."""
    draws_by_position: bool | None = None
    """Whether the same seed goes on with the same draws behind a prompt and a partial reply."""
    logprobs: LogprobsMode | None = None
    """Whether logprobs are taken before the temperature or after it; None where the draws did not tell."""

    @property
    def is_passed(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine said of itself when it was probed."""

    kind: EngineKind
    version: str
    model: str
    context_length: int | None
    vocabulary: int | None
    """Ids are 0 … vocabulary-1; None when the engine would not say."""
    deterministic: bool | None
    """Whether the engine guarantees that batching does not change tokens; None when it does not tell."""
    auto_truncates: bool = False
    takes_exact_prompts: bool | None = None
    """Whether it reads the prompt ids that a chat request gives it; None where the answer told neither way."""
    fingerprint: str | None = None
    """Equal where kind, model, tokenizer and template are (engine/fingerprint.py); None where it would not render."""
    process: str | None = None
    """What tells the process that answered from its successors, where its weights' version is the trainer's word alone;
    None where nothing does.
    """
    details: JsonObject = field(default_factory=dict)
    proof: Proof | None = None
    """What its draws proved; None before they were made."""

    @property
    def logprobs_mode(self) -> str | None:
        """What it says of itself, unless its draws show that they are raw; None where neither tells."""
        shown = self.proof.logprobs if self.proof else None
        told: str | None = self.details.get("logprobs_mode")
        return "raw_logprobs" if shown == "raw" else told or (f"{shown}_logprobs" if shown else None)

    @property
    def honours_seeds(self) -> bool:
        """SGLang ignores seeds unless it runs in deterministic mode."""
        return self.kind != "sglang" or bool(self.deterministic)


@dataclass(frozen=True, slots=True)
class EngineRef:
    """One engine of the pool, as a call saw it."""

    name: str
    url: str
    facts: EngineFacts
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a profile on an engine that its owner should know, and what mends it."""

    profile: str
    engine: str
    setting: str
    severity: Literal["warn", "refuse"]
    """`refuse` findings keep the profile off the engine."""
    message: str
    remedy: str

    def line(self) -> str:
        """All of it on one line."""
        return f"profile {self.profile} on {self.engine}: {self.setting}: {self.message}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is sent: a path below the engine's URL and a body built from the allow-list."""

    path: str
    body: JsonObject
