"""kill -9 at any moment: no call whose end a client saw is lost, none that an engine was asked is unaccounted for.

The proxy runs in a process of its own, forked from one that has imported it already, so that each start costs little.
"""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.forked import forkserver
from tests.patience import PATIENCE_S
from tests.served import ADMIN, settings_for

ROUNDS = 100
CLIENTS = 6
# A kill comes after this many ends at most, and this long after the last of them.
MOST_ENDS = 10
LATEST_KILL_S = 0.03
TRAINER = {"authorization": f"Bearer {ADMIN}"}


@dataclass
class Seen:
    """What clients saw over all rounds."""

    ended: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)


def run_until_killed(folder: Path, engine_url: str, told: Connection, fields: dict[str, Any]) -> None:
    """The body of the proxy's process."""
    import asyncio

    from proxy.app import run_proxy

    settings = settings_for(folder, engine_url, **{"timeouts": {"drain_s": 0.1}, **fields})
    asyncio.run(run_proxy(settings, lambda _server, wiring: told.send(wiring.data_port)))


@contextmanager
def proxy_process(folder: Path, engine_url: str, **fields: Any) -> Iterator[tuple[Any, str]]:
    """A proxy to be killed, and its URL."""
    ours, theirs = forkserver.Pipe()
    process = forkserver.Process(target=run_until_killed, args=(folder, engine_url, theirs, fields))
    process.start()
    assert ours.poll(PATIENCE_S), "the proxy did not start"
    try:
        yield process, f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


def new_rollout(url: str, rollout_id: str) -> tuple[str, str]:
    answer = httpx.post(f"{url}/rollouts", json={"rollout_id": rollout_id}, headers=TRAINER, timeout=PATIENCE_S)
    assert answer.status_code == 201, answer.text
    return answer.json()["base_url"], answer.json()["api_key"]


def read_calls(url: str, rollout_id: str) -> list[dict[str, Any]]:
    """All of them, however many there are on a fast machine."""
    calls, query = list[dict[str, Any]](), {"limit": "1000"}
    while True:
        answer = httpx.get(f"{url}/rollouts/{rollout_id}/calls", params=query, headers=TRAINER, timeout=PATIENCE_S)
        page = answer.json()
        calls += page["calls"]
        if not page["cursor"]:
            return calls
        query["cursor"] = page["cursor"]


def call_until_killed(base_url: str, key: str, number: int, seen: Seen) -> None:
    """Call after call, streamed and whole in turn, until the connection breaks."""
    with httpx.Client(base_url=base_url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as http:
        for turn in range(1000):
            body = {"messages": [{"role": "user", "content": f"{number} {turn}"}], "stream": (number + turn) % 2 == 0}
            try:
                with http.stream("POST", "/chat/completions", json=body) as response:
                    call_id = response.headers["x-rollpin-call-id"]
                    seen.begun.add(call_id)
                    for line in response.iter_lines():
                        if shows_the_end(line):
                            seen.ended.add(call_id)
            except httpx.HTTPError:
                return


def shows_the_end(line: str) -> bool:
    """Whether a line tells the client that the reply is over."""
    text = line.removeprefix("data: ")
    if not text.startswith("{"):
        return text == "[DONE]"
    event = json.loads(text)
    return any(choice.get("finish_reason") for choice in event.get("choices", ()))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_killed_proxy_loses_no_call_whose_end_was_seen(kind: Any, tmp_path: Path) -> None:
    """Fifty kills for each engine kind at random moments under load; the store is read after each restart."""
    draw, seen = random.Random(20261130), Seen()
    with FakeEngine(kind, token_delay_s=0.001) as engine:
        for number in range(ROUNDS // 2):
            ends, delay_s = draw.randrange(MOST_ENDS), draw.uniform(0, LATEST_KILL_S)
            one_round(f"round-{number}", ends, delay_s, tmp_path, engine.url, seen)
        with proxy_process(tmp_path, engine.url) as (_process, url):
            calls = [call for number in range(ROUNDS // 2) for call in read_calls(url, f"round-{number}")]
        asked = {request.headers["x-request-id"] for request in engine.requests}

    done = {call["call_id"]: call for call in calls if call["state"] == "done"}
    assert len(seen.ended) > ROUNDS, "the clients must have seen ends at all"
    assert seen.ended <= set(done)
    assert all(done[call_id]["capture"]["complete"] for call_id in seen.ended)
    assert asked | seen.begun <= {call["call_id"] for call in calls}
    assert {call["state"] for call in calls} == {"done", "failed"}
    assert {call["failure"]["kind"] for call in calls if call["state"] == "failed"} == {"proxy_died"}


def one_round(rollout_id: str, ends: int, delay_s: float, folder: Path, engine_url: str, seen: Seen) -> None:
    """Start, load, kill once so many more ends were seen."""
    enough = len(seen.ended) + ends
    with proxy_process(folder, engine_url) as (process, url):
        base_url, key = new_rollout(url, rollout_id)
        clients = [
            threading.Thread(target=call_until_killed, args=(base_url, key, client, seen)) for client in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        while len(seen.ended) < enough:
            threading.Event().wait(0.002)
        threading.Event().wait(delay_s)
        process.kill()
        for client in clients:
            client.join()
