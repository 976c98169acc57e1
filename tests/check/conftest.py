"""What all checks of an engine have in common here."""

import pytest


@pytest.fixture
def idle_s() -> float:
    """How long an idle connection is watched, where its life is not what a test is about."""
    return 0.05


@pytest.fixture(autouse=True)
def _idle_time(idle_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.check.server.IDLE_S", idle_s)
