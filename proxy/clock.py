"""Time, randomness and new ids come in here and nowhere else (lint bans their modules elsewhere)."""

import secrets
import time
from datetime import UTC, date, datetime

# Bits of a drawn run seed: fits JSON numbers of every client exactly.
RUN_SEED_BITS = 48


def now() -> float:
    """Wall clock in seconds since the epoch; for records and leases."""
    return time.time()


def today() -> date:
    """The day, in UTC."""
    return datetime.fromtimestamp(now(), UTC).date()


def ticks() -> float:
    """Monotonic seconds; for durations only."""
    return time.monotonic()


def iso(seconds: float) -> str:
    """RFC 3339 text of a wall clock time, in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    """The wall clock time that `iso` wrote."""
    return datetime.fromisoformat(text).timestamp()


def new_id(prefix: str) -> str:
    """A fresh id of fixed length: prefix, underscore, 32 hex digits."""
    return f"{prefix}_{secrets.token_hex(16)}"


def new_token(prefix: str) -> str:
    """A fresh secret of 256 bits for people and programs to present."""
    return f"{prefix}-{secrets.token_hex(32)}"


def new_run_seed() -> int:
    """A run seed for a store that has none yet."""
    return secrets.randbits(RUN_SEED_BITS)
