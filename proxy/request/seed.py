"""Seeds: minted from who asks and what is asked, never from when or in which order.

The same run seed, group, sample, attempt and canonical conversation give the same seed in every process; two samples
of a group differ. `occurrence` tells deliberate repeats of one conversation apart, `choice` the n of one request.
"""

from typing import Literal

from proxy.canonical import first_31_bits
from proxy.errors import BadAsk
from proxy.model import Identity, Seed, SeedSource

SEED_MARK = "rollpin-seed-1"
CLIENT_SEED_MARK = "rollpin-seed-client-1"

ClientSeedMode = Literal["override", "honour", "mix"]


def mint_seed(
    run_seed: int,
    group: str,
    sample: int,
    attempt: int,
    context: str,
    occurrence: int,
    choice: int,
    *mixed_in: int,
) -> int:
    """31 bits from the whole identity of a draw; `mixed_in` holds the client's own seed where it counts."""
    return first_31_bits([SEED_MARK, run_seed, group, sample, attempt, context, occurrence, choice, *mixed_in])


def seed_from_client(client_seed: int, choice: int, *segment: int) -> int:
    """31 bits from the client's seed alone; `segment` as in `SeedRule.mint`."""
    return first_31_bits([CLIENT_SEED_MARK, client_seed, choice, *segment])


class SeedRule:
    """How one call's seed follows from the occurrence that the store will give it."""

    def __init__(
        self,
        mode: ClientSeedMode,
        run_seed: int,
        identity: Identity,
        context: str,
        choice: int,
        client_seed: int | None,
    ) -> None:
        self._run_seed = run_seed
        self._rollout = identity.rollout
        self._context = context
        self._choice = choice
        self.client_seed = client_seed
        self.source: SeedSource = "minted"
        if client_seed is not None and mode != "override":
            self.source = "client" if mode == "honour" else "mixed"

    @property
    def must_be_exclusive(self) -> bool:
        """A client that gives every sample of a group one seed would collapse the group."""
        return self.source == "client"

    @property
    def run_seed(self) -> int | None:
        """The run seed that decides here; none where the client's seed does alone."""
        return None if self.source == "client" else self._run_seed

    def seed(self, value: int, occurrence: int) -> Seed:
        """The seed that was minted, with how it came about."""
        return Seed(value, self.source, occurrence, self._choice, self.client_seed, self.run_seed)

    def mint(self, occurrence: int, *segment: int) -> int:
        """The seed of this call at the given occurrence.

        A segment that goes on after an interruption, on an engine that would begin the same noise anew, has its index
        (from 1) at the end of the tuple.
        """
        if self.source == "client" and self.client_seed is not None:
            return seed_from_client(self.client_seed, self._choice, *segment)
        mixed_in = (self.client_seed,) if self.source == "mixed" and self.client_seed is not None else ()
        who = self._rollout
        return mint_seed(
            self._run_seed,
            who.group,
            who.sample,
            who.attempt,
            self._context,
            occurrence,
            self._choice,
            *mixed_in,
            *segment,
        )


def read_client_seed(value: object) -> int | None:
    """The client's seed, or None; raises BadAsk on anything but an integer that fits 64 bits."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadAsk(f"seed must be an integer, not {type(value).__name__}", param="seed")
    if not -(2**63) <= value < 2**63:
        raise BadAsk("seed must fit a signed 64-bit integer", param="seed")
    return value
