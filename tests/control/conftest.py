"""A control plane over a real store, with engines that are known without being asked."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.deliveries import Deliveries
from proxy.engine.pool import Pool
from proxy.engine.upstream import Upstream
from proxy.keys import Keys
from proxy.pauses import Pauses
from proxy.planes import make_app
from proxy.presence import Presence
from proxy.profiles import Profiles
from proxy.record.sqlite import SqliteStore
from proxy.request.templates import Templates
from proxy.running import Turns
from proxy.weights import WeightWatch
from proxy.wiring import Wiring
from tests import make
from tests.served import ADMIN, READER, settings_for

ENGINE_URL = "http://127.0.0.1:1"


class Control:
    """A client of the control plane, and what stands behind it."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self._app = make_app(wiring, data=True, control=True)

    def client(self, token: str | None = ADMIN, **headers: str) -> httpx.AsyncClient:
        """A client with this token."""
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://proxy.test:8080", headers=headers)

    async def ask(self, method: str, path: str, token: str | None = ADMIN, **more: Any) -> httpx.Response:
        """One request."""
        async with self.client(token) as client:
            return await client.request(method, path, **more)

    async def opened(self, rollout_id: str, **fields: Any) -> dict[str, Any]:
        """A new rollout's grant."""
        answer = await self.ask("POST", "/rollouts", json={"rollout_id": rollout_id, **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def all_rollouts(self) -> list[dict[str, Any]]:
        return list((await self.ask("GET", "/rollouts")).json()["rollouts"])

    def engine_is(self, **facts: Any) -> None:
        """Let the engine have said this of itself."""
        engine = self.wiring.pool.engines[0]
        engine.ref, engine.problem = make.engine(engine.name, **facts), None


@pytest.fixture
def changes() -> dict[str, Any]:
    """Settings that a test changes, by overriding this fixture."""
    return {}


@pytest.fixture
async def control(tmp_path: Path, changes: dict[str, Any]) -> AsyncIterator[Control]:
    engines = changes.get("engines", [ENGINE_URL])
    others = {name: value for name, value in changes.items() if name != "engines"}
    settings = settings_for(tmp_path, *engines, **others)
    store = SqliteStore(settings.store_path, durability="wal")
    await store.open()
    upstream = Upstream(connect_s=1, silence_s=1, probe_s=1, reply_bytes=10_000)
    pauses = Pauses(1)
    wiring = Wiring(
        settings=settings,
        keys=Keys(ADMIN, READER, key_secret="a secret of tests alone"),
        store=store,
        profiles=Profiles(settings.profiles),
        upstream=upstream,
        templates=Templates(),
        pool=Pool(settings.engines, upstream, require_replayable=settings.require_replayable),
        turns=Turns(at_once=8, at_once_per_rollout=8),
        run_seed=7,
        owner="px_test",
        data_port=8081,
        pauses=pauses,
        deliveries=Deliveries(store),
        presence=Presence(store, "px_test", 60, pauses),
        weights=WeightWatch(store, upstream, "salt"),
    )
    made = Control(wiring)
    made.engine_is()
    yield made
    await upstream.aclose()
    await store.close()


Told = Callable[[httpx.Response], str]


@pytest.fixture
def told() -> Told:
    """The message of an error in OpenAI's form, which must be one line."""

    def message(answer: httpx.Response) -> str:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "\n" not in error["message"]
        return str(error["message"])

    return message
