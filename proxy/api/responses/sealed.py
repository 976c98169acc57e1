"""Reasoning in `encrypted_content`: for clients that echo nothing else of it.

It is not secret, only packed: the client has the text beside it. The same text always gives the same bytes.
"""

import base64
import binascii

from proxy.model import JsonObject

MARK = "rollpin-reasoning-1."
ASKED_FOR = "reasoning.encrypted_content"


def is_wanted(body: JsonObject) -> bool:
    """Asked for by name, or needed by a client that keeps its conversation itself."""
    return ASKED_FOR in (body.get("include") or ()) or body.get("store") is False


def seal(reasoning: str) -> str:
    """The text in one opaque word."""
    return MARK + base64.urlsafe_b64encode(reasoning.encode("utf-8", "surrogatepass")).decode()


def unseal(sealed: object) -> str | None:
    """The text that `seal` packed; None where it was somebody else."""
    if not isinstance(sealed, str) or not sealed.startswith(MARK):
        return None
    try:
        packed = base64.b64decode(sealed.removeprefix(MARK), altchars=b"-_", validate=True)
        return packed.decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return None
