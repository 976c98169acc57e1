"""Waiting, in tests, for a state and never for a time: seconds only bound what would never come."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 240.0
"""More than the slowest machine needs for anything that comes at all, and less than a test may take."""
LOOK_EVERY_S: Final = 0.01


def until(is_so: Callable[[], bool], what: Callable[[], object] = lambda: "waited in vain") -> None:
    """Return once it is so; where it never is, fail with what there is instead."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(LOOK_EVERY_S)
