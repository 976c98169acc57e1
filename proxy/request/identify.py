"""Who is calling: names, keys and lane signals as they stand in a request.

Whether the rollout exists is asked later, of the store.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from proxy.errors import BadAsk, WrongKey
from proxy.keys import Keys, rollout_named_by
from proxy.model import LANE_HEADERS, RolloutId

# Printable, safe in a URL path as it stands, never "." or "..".
ROLLOUT_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:~=+@-]{0,199}")
ROLLOUT_ID_RULE = "1 to 200 of the characters A-Z a-z 0-9 . _ : ~ = + @ -, beginning with a letter or digit"

LONGEST_SIGNAL = 200
# As long as payment services take them.
LONGEST_IDEMPOTENCY_KEY = 255


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request says of its rollout."""

    rollout_id: RolloutId
    key: str | None


def identify(headers: Mapping[str, str], path_id: str | None, *, trust_header: bool) -> Caller:
    """The rollout that a request belongs to: by path, else by key, else by header where that is trusted.

    Checks no key. Raises WrongKey where nothing names a rollout, BadAsk where the name cannot be one.
    """
    key = presented_key(headers)
    named = path_id or (rollout_named_by(key) if key else None)
    if named is None and trust_header:
        named = headers.get("x-rollout-id")
    if named is None:
        raise WrongKey("no rollout: use the base URL or the API key that the trainer was given for it")
    return Caller(check_rollout_id(named), key)


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key of a request, from `Authorization: Bearer` or `x-api-key`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None


def authorise(caller: Caller, keys: Keys) -> None:
    """Raise WrongKey unless the caller holds its rollout's own key."""
    if caller.key is None:
        raise WrongKey("no API key: send the rollout's own as a bearer token or as x-api-key")
    if not keys.opens_rollout(caller.key, caller.rollout_id):
        raise WrongKey(f"this API key does not belong to rollout {caller.rollout_id!r}")


def check_rollout_id(value: str) -> RolloutId:
    """The id, if it can be one; raises BadAsk naming the rule."""
    if not ROLLOUT_ID_PATTERN.fullmatch(value):
        raise BadAsk(f"rollout id {value[:80]!r}: {ROLLOUT_ID_RULE}", code="invalid_rollout_id", param="rollout_id")
    return RolloutId(value)


def lane_signals(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that tell lanes apart, cut to a sane length."""
    return {name: headers[name][:LONGEST_SIGNAL] for name in LANE_HEADERS if headers.get(name)}


def retry_count(headers: Mapping[str, str]) -> int:
    """x-stainless-retry-count, or 0 where it is absent or no number."""
    text = headers.get("x-stainless-retry-count", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """The client's own name for a request, which it repeats with a retry; raises BadAsk where it can be none."""
    key = headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= LONGEST_IDEMPOTENCY_KEY and key.isprintable()):
        raise BadAsk(f"Idempotency-Key: 1 to {LONGEST_IDEMPOTENCY_KEY} printable characters", param="Idempotency-Key")
    return key
