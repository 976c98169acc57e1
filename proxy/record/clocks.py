"""How far this machine's clock is from the server's: processes on one store tell leases by clocks of their own."""

from proxy import clock
from proxy.record.database import Connection
from proxy.record.faults import ClocksApart

# From here on it is said aloud: leases and pauses end that much too early or too late.
AGREE_S = 1.0
# From here on nobody starts: running calls of others would be given up, or dead ones waited for.
APART_S = 10.0
_NOW = "select cast(extract(epoch from clock_timestamp()) as double precision) as told"


def read_lead_s(connection: Connection) -> float:
    """By how many seconds this machine's clock is ahead for certain, below 0 where it is behind.

    What the way to the server and back may account for is not counted.
    """
    asked = clock.now()
    told = float(connection.execute(_NOW).fetchone()["told"])
    return lead_s(asked, told, clock.now())


def lead_s(asked: float, told: float, answered: float) -> float:
    """The server told its time at some moment between question and answer: half of the way, give or take the other."""
    return max(asked - told, 0.0) or min(answered - told, 0.0)


def refuse_if_apart(connection: Connection) -> None:
    """Raise ClocksApart."""
    lead = read_lead_s(connection)
    if abs(lead) > APART_S:
        raise ClocksApart(f"this machine's clock is {tell_lead(lead)}: set it right, since leases are told by it")


def tell_lead(lead: float) -> str:
    """In words."""
    return f"{abs(lead):.1f} s {'ahead of' if lead > 0 else 'behind'} the store's"
