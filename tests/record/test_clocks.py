"""Clocks of processes that share a store: how far apart they are for certain, and what comes of it."""

import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from proxy import clock
from proxy.pauses import Pauses
from proxy.presence import Presence
from proxy.record.clocks import lead_s
from proxy.record.faults import ClocksApart
from proxy.record.postgres import PostgresStore
from tests.postgres import PostgresServer

pytestmark = pytest.mark.anyio
Shift = Callable[[float], None]


@pytest.fixture
def shift(monkeypatch: pytest.MonkeyPatch) -> Shift:
    """Sets this process's clock wrong by so many seconds."""

    def by(seconds: float) -> None:
        monkeypatch.setattr(clock, "now", lambda: time.time() + seconds)

    return by


@pytest.mark.parametrize(
    ("told", "lead"),
    [(95.0, 5.0), (99.9, 0.1), (100.0, 0.0), (103.0, 0.0), (104.0, 0.0), (104.5, -0.5), (114.0, -10.0)],
)
def test_only_what_the_way_cannot_account_for_is_a_lead(told: float, lead: float) -> None:
    """Asked at 100 and answered at 104, any time between may be the right one."""
    assert lead_s(100.0, told, 104.0) == pytest.approx(lead)


@pytest.mark.parametrize("seconds", [100, -100])
async def test_a_process_whose_clock_is_far_off_is_refused(
    postgres: PostgresServer, shift: Shift, seconds: int
) -> None:
    """Before it gives anybody up by that clock."""
    shift(seconds)
    store = PostgresStore(postgres.new_schema())

    with pytest.raises(ClocksApart, match=f"{'ahead of' if seconds > 0 else 'behind'} the store's"):
        await store.open()


async def test_a_clock_that_went_wrong_is_told_of_aloud(postgres: PostgresServer, shift: Shift) -> None:
    """With each sign of life; one that is right is not mentioned."""
    store = PostgresStore(postgres.new_schema())
    await store.open()
    presence = Presence(store, "px", 60, Pauses(1))
    with capture_logs() as right:
        await presence.compare_clocks()
    shift(1000)
    with capture_logs() as wrong:
        await presence.compare_clocks()
    await store.close()

    assert right == []
    assert [(one["log_level"], "ahead of the store's" in one["clock"]) for one in wrong] == [("error", True)]
    assert 900 < presence.clock_lead_s <= 1000
