"""A thought in `encrypted_content`, for clients that echo nothing else of it; packed, and no secret."""

import base64
import binascii
from typing import Any

from proxy.sim.template import Json

MARK = "simulated-reasoning."
ASKED_FOR = "reasoning.encrypted_content"


def is_wanted(body: Json) -> bool:
    return ASKED_FOR in (body.get("include") or ())


def seal(thought: str) -> str:
    return MARK + base64.b64encode(thought.encode()).decode()


def unseal(sealed: Any) -> str | None:
    """What `seal` packed; None where it was somebody else."""
    if not isinstance(sealed, str) or not sealed.startswith(MARK):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
