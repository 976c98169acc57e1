"""What is checked, what a fault is, and what mends it."""

from dataclasses import dataclass
from typing import Literal, get_args

CheckName = Literal[
    "file",
    "rollouts",
    "numbers",
    "deliveries",
    "bodies",
    "prompts",
    "documents",
    "tokens",
    "segments",
    "seeds",
    "contexts",
    "parents",
    "trajectories",
    "audit",
]
CHECKS: tuple[CheckName, ...] = get_args(CheckName)

_DRAW_ANEW = "do not train on this call; draw its rollout anew, or take it from a backup"
_RESTORE = "take the store from a backup: rows were changed or lost outside of Rollpin"

REMEDIES: dict[CheckName, str] = {
    "file": "take the file from a backup, or save what can be read with sqlite3's .recover",
    "rollouts": _RESTORE,
    "numbers": _RESTORE,
    "deliveries": _RESTORE,
    "bodies": "the request cannot be trusted, its tokens may be; take the rollout from a backup",
    "prompts": _DRAW_ANEW,
    "documents": _DRAW_ANEW,
    "tokens": _DRAW_ANEW,
    "segments": _DRAW_ANEW,
    "seeds": "this call was not drawn as its identity says: do not compare it with its group",
    "contexts": "the conversation on record is not the one that was seeded; take the rollout from a backup",
    "parents": _DRAW_ANEW,
    "trajectories": "do not train on this rollout, and report the fault: assembly broke one of its laws",
    "audit": "the engine did not draw this token with this seed: a flipped token, another seed, or a disturbed batch",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One promise that the store does not keep."""

    check: CheckName
    message: str
    rollout_id: str | None = None
    call_id: str | None = None

    @property
    def remedy(self) -> str:
        return REMEDIES[self.check]
