"""Ids and seeds that a test draws: other ones in each test, and the same ones whenever it runs.

What a simulated model says hangs on the id of its rollout. Where ids are left to chance, a test that holds for nearly
every reply fails once in hundreds of runs, and shows another reply when it is run again.
"""

import random
from typing import Final


class Lots:
    """Draws like `secrets`, from a source that a text begins."""

    def __init__(self, source: str) -> None:
        self._draws: Final = random.Random(source)

    def token_hex(self, length: int) -> str:
        """So many random bytes in hexadecimal."""
        return self._draws.randbytes(length).hex()

    def randbits(self, bits: int) -> int:
        """An integer of at most so many random bits."""
        return self._draws.getrandbits(bits)
