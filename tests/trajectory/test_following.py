"""Who follows trajectories, over sockets: told as groups close, kept company, let go."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.harness import until
from tests.served import ServedProxy, served, settings_for

NO_ENGINE = "http://127.0.0.1:1"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ServedProxy]:
    """A proxy that keeps silent readers company every 50 ms."""
    with served(settings_for(tmp_path, NO_ENGINE, timeouts={"heartbeat_after_s": 0.05})) as running:
        yield running


@contextmanager
def following(proxy: ServedProxy, **query: Any) -> Iterator[Iterator[str]]:
    """The lines of a reader that stays, empty ones included."""
    asked = {"follow": "true", **query}
    with proxy.control.stream("GET", "/trajectories", params=asked, timeout=httpx.Timeout(30)) as answer:
        assert answer.status_code == 200
        yield answer.iter_lines()


def told(lines: Iterator[str]) -> dict[str, Any]:
    """The next line that says something."""
    return dict(json.loads(next(line for line in lines if line)))


def close_group(proxy: ServedProxy, group: str) -> None:
    proxy.rollout(rollout_id=group, group=group)
    proxy.control.post(f"/rollouts/{group}/finish")


def tasks(proxy: ServedProxy) -> set[asyncio.Task[Any]]:
    """What runs in the proxy."""

    async def all_tasks() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks()

    return set(proxy.do(all_tasks()))


def test_a_reader_that_follows_is_told_as_groups_close(proxy: ServedProxy) -> None:
    """And kept company in between; its cursors are good for the next reader."""
    with following(proxy) as lines:
        assert next(lines) == ""
        close_group(proxy, "one")
        first = told(lines)
        assert next(lines) == ""
        close_group(proxy, "two")
        second = told(lines)
    with following(proxy, since=first["cursor"]) as lines:
        again = told(lines)

    assert [line["trajectory"]["rollout_id"] for line in (first, second)] == ["one", "two"]
    assert again == second


def test_a_reader_that_leaves_is_forgotten(proxy: ServedProxy) -> None:
    """Nothing looks on for it."""
    close_group(proxy, "one")
    before = tasks(proxy)
    with following(proxy) as lines:
        told(lines)
        brought = tasks(proxy) - before
        assert not all(task.done() for task in brought)

    until(lambda: all(task.done() for task in brought))


def test_a_proxy_that_stops_lets_its_readers_go(tmp_path: Path) -> None:
    """The answer comes to its proper end, at once, and the last cursor goes on elsewhere."""
    with served(settings_for(tmp_path, NO_ENGINE, timeouts={"drain_s": 600})) as proxy:
        close_group(proxy, "one")
        with following(proxy) as lines:
            first = told(lines)
            proxy.stop()
            rest = [line for line in lines if line]
    with served(settings_for(tmp_path, NO_ENGINE)) as proxy:
        close_group(proxy, "two")
        with following(proxy, since=first["cursor"]) as lines:
            second = told(lines)

    assert rest == []
    assert second["trajectory"]["rollout_id"] == "two"
