"""Notes of how deliveries ended: what a client got is on record, also where the store was away at that moment."""

import pytest

from proxy import deliveries
from proxy.deliveries import Deliveries
from proxy.errors import StoreDown
from proxy.model import Delivery
from tests import make
from tests.api.harness import until
from tests.fakes import FakeEngine
from tests.served import served, settings_for

pytestmark = pytest.mark.anyio


class NoteStore:
    """A store that is away until it is told to be back."""

    def __init__(self) -> None:
        self.is_away = True
        self.noted: list[Delivery] = []
        self.asked = 0

    async def deliver(self, delivery: Delivery) -> None:
        self.asked += 1
        if self.is_away:
            raise StoreDown("away")
        self.noted.append(delivery)


@pytest.fixture
def store() -> NoteStore:
    return NoteStore()


@pytest.fixture
def notes(store: NoteStore, monkeypatch: pytest.MonkeyPatch) -> Deliveries:
    monkeypatch.setattr(deliveries, "TRY_EVERY_S", 0.001)
    return Deliveries(store)  # type: ignore[arg-type]


THREE = [make.delivery(f"delivery_{number}") for number in range(3)]


async def test_notes_that_the_store_did_not_take_are_written_when_it_is_back(
    notes: Deliveries, store: NoteStore
) -> None:
    """In their order, each once; and whoever told them has not waited."""
    for delivery in THREE:
        await notes.note(delivery)
    store.is_away = False
    await notes.settle(60)

    assert store.noted == THREE


async def test_a_stop_waits_for_a_store_that_is_away_no_longer_than_it_was_told(
    notes: Deliveries, store: NoteStore
) -> None:
    """And nothing is tried after it."""
    await notes.note(THREE[0])
    await notes.settle(0.01)
    store.is_away = False
    assert notes._writing is not None
    with pytest.raises(BaseException):  # noqa: B017  it was cancelled
        await notes._writing

    assert store.noted == []


async def test_no_more_notes_wait_than_there_is_room_for(
    notes: Deliveries, store: NoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones keep their places."""
    monkeypatch.setattr(deliveries, "MOST_WAITING", 2)
    for delivery in THREE:
        await notes.note(delivery)
    store.is_away = False
    await notes.settle(60)

    assert store.noted == THREE[:2]


async def test_a_note_is_given_up_in_the_end(
    notes: Deliveries, store: NoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the store stays away."""
    monkeypatch.setattr(deliveries, "PATIENCE_S", 0)
    await notes.note(THREE[0])
    await notes.settle(60)
    store.is_away = False

    assert (list(notes._waiting), store.noted) == ([], [])
    assert store.asked >= 2


def test_a_delivery_is_on_record_though_the_store_was_away_at_its_end(tmp_path, store_url: str) -> None:  # type: ignore[no-untyped-def]
    """On each kind of store."""
    with FakeEngine("vllm") as engine, served(settings_for(tmp_path, engine.url, store=store_url)) as proxy:
        client, real, gone = proxy.rollout(), proxy.wiring.store, NoteStore()
        proxy.wiring.deliveries._store = gone  # type: ignore[assignment]
        assert client.chat().status_code == 200
        until(lambda: gone.asked)
        (call,) = proxy.calls(client.rollout_id)
        (before,) = call["deliveries"]
        proxy.wiring.deliveries._store = real
        (after,) = client.call()["deliveries"]

    assert (before["outcome"], after["outcome"], after["events"]) == (None, "delivered", 1)
