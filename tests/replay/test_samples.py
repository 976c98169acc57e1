"""A share of the calls is replayed and rescored as they are recorded, and shows in the metrics."""

from pathlib import Path

from proxy.replay.samples import is_chosen
from tests.fakes import FakeEngine, Fault
from tests.patience import until
from tests.served import ServedProxy, served, settings_for


def count(proxy: ServedProxy, name: str) -> float:
    """A metric's value; 0 where it was never counted."""
    text = proxy.control.get("/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_at_full_rates_every_call_is_replayed_and_rescored(tmp_path: Path) -> None:
    """Without being asked for; a call that failed is not."""
    rates = {"replay_sample_rate": 1, "rescore_sample_rate": 1}
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url, **rates)) as proxy:
        same, scored = 'rollpin_replays_total{verdict="same"}', 'rollpin_rescores_total{result="rescored"}'
        mismatch = "rollpin_rescore_difference_count"
        before = {name: count(proxy, name) for name in (same, scored, mismatch)}
        engine.script(Fault.status(500))
        client = proxy.rollout()
        client.chat("fails")
        client.chat("hello", n=2, max_tokens=9)

        def counted() -> dict[str, float]:
            return {name: count(proxy, name) - value for name, value in before.items()}

        until(lambda: min(counted().values()) >= 2, counted)

        assert counted() == {same: 2, scored: 2, mismatch: 2}
        assert len(client.calls()) == 3


def test_by_default_nothing_is_asked_beside_the_calls(tmp_path: Path) -> None:
    """Both rates are 0."""
    with FakeEngine("sglang") as engine, served(settings_for(tmp_path, engine.url)) as proxy:
        client = proxy.rollout()
        before = len(engine.requests)
        client.chat("hello")
        client.calls()

        assert proxy.wiring.samples.empty()
        assert len(engine.requests) == before + 1


def test_a_rate_is_the_share_that_it_says() -> None:
    """And the two purposes do not choose the same calls."""
    ids = [f"ca_{number:032x}" for number in range(4000)]
    replayed = {call_id for call_id in ids if is_chosen(call_id, "replay", 0.25)}
    rescored = {call_id for call_id in ids if is_chosen(call_id, "rescore", 0.25)}

    assert 900 < len(replayed) < 1100
    assert 180 < len(replayed & rescored) < 320
    assert not any(is_chosen(call_id, "replay", 0) for call_id in ids)
    assert all(is_chosen(call_id, "replay", 1) for call_id in ids)
