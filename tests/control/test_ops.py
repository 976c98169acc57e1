"""Liveness, readiness, metrics and engines."""

import pytest

from proxy import metrics
from tests.control.conftest import ENGINE_URL, Control
from tests.served import ADMIN, READER

pytestmark = pytest.mark.anyio


def failing(document: dict[str, dict[str, dict[str, object]]]) -> list[str]:
    """The names of the checks that fail."""
    return [name for name, check in document["checks"].items() if not check["ok"]]


async def test_a_proxy_with_a_store_and_an_engine_is_ready(control: Control) -> None:
    """Every check is named, also those that pass."""
    answer = await control.ask("GET", "/readyz", token=None)

    assert answer.status_code == 200
    assert answer.json()["ready"] is True
    assert set(answer.json()["checks"]) == {"store", "engines", "profiles", "clock"}


async def test_without_a_known_engine_it_is_not_ready_but_alive(control: Control) -> None:
    """Neither while none has answered, nor when the last one is lost."""
    engine = control.wiring.pool.engines[0]
    engine.problem = "secret-looking text of an engine"
    lost = await control.ask("GET", "/readyz", token=None)
    engine.ref = None
    unknown = await control.ask("GET", "/readyz", token=None)
    alive = await control.ask("GET", "/healthz", token=None)

    assert [lost.status_code, unknown.status_code, alive.status_code] == [503, 503, 200]
    assert failing(lost.json()) == ["engines"]
    assert "secret-looking" not in lost.text


async def test_while_the_store_is_down_it_is_not_ready_and_says_so(control: Control) -> None:
    """The path of the store is nobody's business here."""
    await control.wiring.store.close()

    ready = await control.ask("GET", "/readyz", token=None)
    opened = await control.ask("POST", "/rollouts", json={})

    assert ready.status_code == 503
    assert failing(ready.json()) == ["store"]
    assert "rollpin.db" not in ready.text
    assert (opened.status_code, opened.json()["error"]["code"]) == (503, "store_unavailable")
    assert "retry-after" in opened.headers


@pytest.mark.parametrize("changes", [{"require_replayable": True}])
async def test_a_profile_that_no_engine_may_serve_is_named(control: Control) -> None:
    """Seeds that are ignored cannot be replayed."""
    control.engine_is(kind="sglang", deterministic=False)

    ready = await control.ask("GET", "/readyz", token=None)

    assert failing(ready.json()) == ["profiles"]
    assert "train, validation" in ready.json()["checks"]["profiles"]["message"]


async def test_a_clock_that_is_far_from_the_stores_is_named(control: Control) -> None:
    """Leases would be told wrongly, by which others are taken for dead."""
    control.wiring.presence.clock_lead_s = -10.1

    ready = await control.ask("GET", "/readyz", token=None)

    assert (ready.status_code, failing(ready.json())) == (503, ["clock"])
    assert ready.json()["checks"]["clock"]["message"] == "this machine's clock is 10.1 s behind the store's"


async def test_metrics_are_in_the_form_of_prometheus(control: Control) -> None:
    """Under our own prefix."""
    metrics.call_ended("engine_cut", 11, 5, 0.5)
    metrics.first_event(0.1)
    metrics.commit(0.001)
    metrics.late_result()

    answer = await control.ask("GET", "/metrics", token=READER)

    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert answer.headers["content-type"].startswith("text/plain")
    assert all(line.startswith("rollpin_") for line in lines)
    assert any(line.startswith('rollpin_calls_total{outcome="engine_cut"}') for line in lines)


@pytest.mark.parametrize("changes", [{"engines": [{"url": ENGINE_URL, "api_key": "engine-key-of-tests"}]}])
async def test_no_answer_holds_a_secret(control: Control) -> None:
    """Not the engine's key, not the tokens, not the secret behind keys."""
    texts = [
        (await control.ask("GET", path)).text
        for path in ("/engines", "/readyz", "/healthz", "/metrics", "/profiles", "/rollouts")
    ]

    for secret in ("engine-key-of-tests", ADMIN, READER, control.wiring.keys.key_secret):
        assert not any(secret in text for text in texts)
