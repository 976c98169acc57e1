"""A proxy on a real socket inside the test's process, and a small client for both of its planes."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from proxy.app import run_proxy
from proxy.server import Server
from proxy.settings import Settings
from proxy.wiring import Wiring
from tests.patience import PATIENCE_S, until

ADMIN = "admin-token-for-tests"
READER = "read-token-for-tests"


class ServedProxy:
    """A running proxy and what tests ask of it."""

    def __init__(self, server: Server, wiring: Wiring, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self.wiring = wiring
        self.url = f"http://127.0.0.1:{wiring.data_port}"
        self.control = httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {ADMIN}"}, timeout=PATIENCE_S, verify=False
        )

    def rollout(self, **fields: Any) -> "RolloutClient":
        """A new rollout, ready for calls."""
        created = self.control.post("/rollouts", json=fields)
        assert created.status_code == 201, created.text
        return RolloutClient(self, created.json())

    def calls(self, rollout_id: str) -> list[dict[str, Any]]:
        """A rollout's calls as they stand."""
        answer = self.control.get(f"/rollouts/{rollout_id}/calls")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["calls"])

    def settled_calls(self, rollout_id: str) -> list[dict[str, Any]]:
        """A rollout's calls once none is still running, and it is noted how each reading of them ended.

        That is noted right after the last byte was sent, which the client may read first.
        """
        calls: list[dict[str, Any]] = []

        def are_settled() -> bool:
            calls[:] = self.calls(rollout_id)
            has_ended = bool(calls) and all(call["state"] != "reserved" for call in calls)
            return has_ended and all(reading["outcome"] for call in calls for reading in call["deliveries"])

        until(are_settled, lambda: calls)
        return calls

    def do(self, work: Any) -> Any:
        """Run a coroutine on the proxy's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._server.stop)


class RolloutClient:
    """A harness of one rollout."""

    def __init__(self, proxy: ServedProxy, created: dict[str, Any]) -> None:
        self.proxy = proxy
        self.created = created
        self.rollout_id: str = created["rollout_id"]
        self.http = httpx.Client(
            base_url=created["base_url"],
            headers={"authorization": f"Bearer {created['api_key']}"},
            timeout=PATIENCE_S,
            verify=False,
        )

    def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        """One unstreamed chat call."""
        return self.post({"model": "policy", "messages": [{"role": "user", "content": text}], **fields})

    def post(self, body: Any) -> httpx.Response:
        return self.http.post("/chat/completions", json=body)

    def stream(self, text: str = "hello", **fields: Any) -> list[dict[str, Any]]:
        """The events of one streamed chat call; asserts that it came to its end."""
        body = {"model": "policy", "messages": [{"role": "user", "content": text}], "stream": True, **fields}
        with self.http.stream("POST", "/chat/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", lines[-1]
        return [json.loads(line) for line in lines[:-1]]

    def calls(self) -> list[dict[str, Any]]:
        return self.proxy.settled_calls(self.rollout_id)

    def call(self) -> dict[str, Any]:
        """The one call of this rollout."""
        (call,) = self.calls()
        return call


def settings_for(folder: Path, *engine_urls: str, **fields: Any) -> Settings:
    """Settings of a proxy in a folder of its own, on a free port."""
    return Settings(
        port=0,
        engines=engine_urls,
        store=fields.pop("store", f"sqlite:///{folder / 'rollpin.db'}"),
        secrets_file=folder / "secrets.json",
        admin_token=ADMIN,
        read_token=READER,
        run_seed=fields.pop("run_seed", 7),
        # Else a probe's calls would come first wherever a test counts calls or scripts them.
        prove_engines=fields.pop("prove_engines", False),
        **fields,
    )


@contextlib.contextmanager
def served(settings: Settings) -> Iterator[ServedProxy]:
    """Run a proxy in a thread until the block ends."""
    up = threading.Event()
    box: list[ServedProxy] = []
    status: list[int] = []

    async def run() -> int:
        loop = asyncio.get_running_loop()

        def ready(server: Server, wiring: Wiring) -> None:
            box.append(ServedProxy(server, wiring, loop))
            up.set()

        return await run_proxy(settings, ready)

    def work() -> None:
        try:
            status.append(asyncio.run(run()))
        finally:
            up.set()

    thread = threading.Thread(target=work, name="proxy")
    thread.start()
    assert up.wait(PATIENCE_S)
    assert box, f"the proxy did not start: status {status}"
    try:
        yield box[0]
    finally:
        box[0].stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
