"""The front door: two planes on sockets of their own, a start that says what is wrong, and an orderly stop."""

import asyncio
import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.app import CANNOT_START, run_proxy, stop_on_signals
from proxy.settings import Settings
from tests.api.harness import FOREVER, Reader, asked, finish_of, until
from tests.fakes import FakeEngine, Fault, Say
from tests.forked import forkserver
from tests.patience import PATIENCE_S
from tests.served import ADMIN, RolloutClient, ServedProxy, served, settings_for

CONTROL_PATHS = ["/rollouts", "/rollouts/r1", "/rollouts/r1/calls", "/metrics", "/engines", "/profiles/train"]
BEARER = {"authorization": f"Bearer {ADMIN}"}
WORDS = Say("one two three")
# Events by which the engine has said some of the words, and not all.
SOME = 8


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine("vllm") as fake:
        yield fake


def refused_start(settings: Settings) -> int:
    """The exit status of a proxy that must not come up."""
    return asyncio.run(run_proxy(settings, lambda _server, _wiring: pytest.fail("it came up")))


def control_url(proxy: ServedProxy) -> str:
    """Where the control plane's own port is."""
    ours = {proxy.wiring.data_port}
    (port,) = until(
        lambda: {sock.getsockname()[1] for one in getattr(proxy._server, "servers", ()) for sock in one.sockets} - ours
    )
    return f"http://127.0.0.1:{port}"


# --- planes ---


def test_both_planes_share_a_port_unless_told_otherwise(engine: FakeEngine, tmp_path: Path) -> None:
    """The simplest set-up."""
    with served(settings_for(tmp_path, engine.url)) as proxy:
        assert proxy.control.get("/rollouts").status_code == 200
        assert proxy.rollout().chat().status_code == 200


def test_the_control_plane_may_have_a_port_of_its_own(engine: FakeEngine, tmp_path: Path) -> None:
    """A harness in the same pod cannot reach it; the trainer is told the harness's port."""
    with served(settings_for(tmp_path, engine.url, control_port=0)) as proxy:
        control = httpx.Client(base_url=control_url(proxy), headers=BEARER)
        created = control.post("/rollouts", json={"rollout_id": "r1"}).json()
        hidden = [httpx.get(proxy.url + path, headers=BEARER).status_code for path in CONTROL_PATHS]
        chat = control.post("/rollouts/r1/v1/chat/completions", json=asked())

        assert created["base_url"] == f"{proxy.url}/rollouts/r1/v1"
        assert set(hidden) <= {404, 405}
        assert [control.get(path).status_code for path in CONTROL_PATHS] == [200] * len(CONTROL_PATHS)
        assert chat.status_code == 404
        assert RolloutClient(proxy, created).chat().status_code == 200


def test_the_control_plane_may_be_a_socket_for_its_owner_alone(engine: FakeEngine, tmp_path: Path) -> None:
    """Mode 0600; the harness's port knows nothing of it."""
    path = tmp_path / "control.sock"
    with served(settings_for(tmp_path, engine.url, control_socket=path)) as proxy:
        control = httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x", headers=BEARER)
        until(lambda: control.get("/healthz").is_success)
        created = control.post("/rollouts", json={"rollout_id": "r1"}).json()
        hidden = [httpx.get(proxy.url + there, headers=BEARER).status_code for there in CONTROL_PATHS]

        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert set(hidden) <= {404, 405}
        assert control.post("/rollouts/r1/v1/chat/completions", json=asked()).status_code == 404
        assert RolloutClient(proxy, created).chat().status_code == 200
        assert [call["state"] for call in control.get("/rollouts/r1/calls").json()["calls"]] == ["done"]


def test_a_socket_that_was_left_behind_is_no_obstacle(engine: FakeEngine, tmp_path: Path) -> None:
    """A killed proxy starts again."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with served(settings_for(tmp_path, engine.url, control_socket=path)) as proxy:
        assert httpx.get(f"{proxy.url}/healthz").status_code == 200


def test_a_file_of_that_name_is_not_removed(engine: FakeEngine, tmp_path: Path) -> None:
    """It is somebody's; the start is refused."""
    path = tmp_path / "control.sock"
    path.write_text("mine")

    assert refused_start(settings_for(tmp_path, engine.url, control_socket=path)) == CANNOT_START
    assert path.read_text() == "mine"


@pytest.mark.parametrize("control_port", [None, 0])
def test_probes_are_open_on_the_data_plane(engine: FakeEngine, tmp_path: Path, control_port: int | None) -> None:
    """Kubernetes asks without a token."""
    with served(settings_for(tmp_path, engine.url, control_port=control_port)) as proxy:
        assert [httpx.get(proxy.url + path).status_code for path in ("/healthz", "/readyz")] == [200, 200]


# --- start ---


@pytest.mark.parametrize("plane", ["", "control_"])
def test_a_taken_port_stops_the_start(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str], plane: str
) -> None:
    """With a status of its own, and a sentence that names the port and the flag that changes it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = settings_for(tmp_path, engine.url).model_copy(update={f"{plane}port": port})

        assert refused_start(settings) == CANNOT_START
    remedy = f"stop what listens there, or choose another port by --{plane.replace('_', '-')}port"
    reason = f"cannot listen on 127.0.0.1:{port}: Address already in use; {remedy}"
    assert capsys.readouterr().err.splitlines()[-1] == f"rollpin: cannot start: {reason}"


def test_a_store_in_use_stops_the_start(engine: FakeEngine, tmp_path: Path) -> None:
    """One file serves one proxy; the first goes on undisturbed."""
    settings = settings_for(tmp_path, engine.url)
    with served(settings) as proxy:
        assert refused_start(settings) == CANNOT_START
        assert proxy.rollout().chat().status_code == 200


@pytest.mark.parametrize(
    "fields",
    [{"profiles": {"train": {"min_p": 0.1}}}, {"require_replayable": True, "profiles": {"train": {"top_p": 0.9}}}],
)
def test_a_profile_that_an_engine_dies_of_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any]
) -> None:
    """Found before the first call, and told once; so is SGLang without seeds where replay is required."""
    with FakeEngine("sglang", deterministic="require_replayable" not in fields) as sglang:
        assert refused_start(settings_for(tmp_path, sglang.url, **fields)) == CANNOT_START
        assert sglang.requests == []
    assert capsys.readouterr().err.count("profile train on ") == 1


def test_an_engine_that_is_not_there_yet_does_not_stop_the_start(tmp_path: Path) -> None:
    """Pods come up in any order: calls get 503 until it answers."""
    with FakeEngine("vllm") as fake:
        fake.stop()
        with served(settings_for(tmp_path, fake.url)) as proxy:
            client = proxy.rollout()
            assert client.chat().status_code == 503
            assert httpx.get(f"{proxy.url}/readyz").status_code == 503
            fake.restart()
            assert until(lambda: client.chat().status_code == 200)
            assert httpx.get(f"{proxy.url}/readyz").status_code == 200


# --- stop ---


def serve_until_signalled(folder: Path, engine_url: str, timeouts: dict[str, float], told: Connection) -> None:
    """The body of a proxy's process."""

    def ready(server: Any, wiring: Any) -> None:
        stop_on_signals(server, wiring)
        told.send(wiring.data_port)

    os._exit(asyncio.run(run_proxy(settings_for(folder, engine_url, timeouts=timeouts), ready)))


@contextmanager
def proxy_process(folder: Path, engine: FakeEngine, **timeouts: float) -> Iterator[tuple[Any, RolloutClient]]:
    """A proxy in a process of its own, and a rollout of it."""
    ours, theirs = forkserver.Pipe()
    process = forkserver.Process(target=serve_until_signalled, args=(folder, engine.url, timeouts, theirs))
    process.start()
    try:
        assert ours.poll(PATIENCE_S), "the proxy did not start"
        url = f"http://127.0.0.1:{ours.recv()}"
        created = httpx.post(f"{url}/rollouts", json={"rollout_id": "r1"}, headers=BEARER).json()
        yield process, RolloutClient(None, created)  # type: ignore[arg-type]
    finally:
        process.kill()
        process.join()


def is_closed(client: RolloutClient) -> bool:
    """Whether no connection is taken any more where a client's proxy listened."""
    try:
        httpx.get(client.created["base_url"])
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        # It had been let in, and nobody came to speak to it.
        return False
    return False


def recorded(folder: Path, engine: FakeEngine) -> dict[str, Any]:
    """The one call on record, as the next proxy finds it."""
    with served(settings_for(folder, engine.url)) as proxy:
        (call,) = proxy.calls("r1")
        return call


def test_a_call_that_ends_in_time_is_answered_at_shutdown(engine: FakeEngine, tmp_path: Path) -> None:
    """Nobody new is let in, and the exit status is 0."""
    engine.script(Fault.stall(SOME, FOREVER, WORDS))
    with proxy_process(tmp_path, engine, drain_s=FOREVER) as (process, client):
        reader = Reader(client)
        until(lambda: reader.text)
        os.kill(process.pid, signal.SIGTERM)
        until(lambda: is_closed(client))
        engine.go_on()
        process.join(PATIENCE_S)

        assert reader.ended().is_done
        assert process.exitcode == 0
    assert recorded(tmp_path, engine)["state"] == "done"


def test_a_call_that_does_not_end_is_cut_told_and_recorded(engine: FakeEngine, tmp_path: Path) -> None:
    """Its partial is kept, its client knows that a retry helps, and the engine is freed."""
    engine.script(Fault.stall(SOME, FOREVER, WORDS))
    with proxy_process(tmp_path, engine, drain_s=0.3) as (process, client):
        reader = Reader(client)
        until(lambda: reader.text)
        os.kill(process.pid, signal.SIGTERM)
        process.join(PATIENCE_S)

        assert process.exitcode == 0
        assert reader.ended().error is not None
        assert reader.error["code"] == "proxy_stopped"
        assert (finish_of(reader.chunks), reader.is_done) == (None, False)
    call = recorded(tmp_path, engine)
    assert (call["state"], call["failure"]["kind"]) == ("failed", "proxy_stopped")
    assert call["completion_token_ids"]
    assert until(lambda: engine.running == 0)


def test_a_whole_reply_that_does_not_end_is_told_to_come_again(engine: FakeEngine, tmp_path: Path) -> None:
    """503 with Retry-After, not a broken connection."""
    engine.script(Fault.stall_before_headers(FOREVER))
    with proxy_process(tmp_path, engine, drain_s=0.2) as (process, client):
        reader = Reader(client, stream=False)
        until(lambda: engine.running)
        os.kill(process.pid, signal.SIGTERM)
        process.join(PATIENCE_S)

        assert (reader.ended().status, process.exitcode) == (503, 0)
    assert recorded(tmp_path, engine)["failure"]["kind"] == "proxy_stopped"
