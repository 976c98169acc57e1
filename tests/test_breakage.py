"""Ways in which the proxy was once broken on purpose, each kept as a test of what holds instead."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.served import ServedProxy, served, settings_for


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with FakeEngine("vllm") as engine:
        yield engine


@pytest.fixture(scope="module")
def proxy(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    with served(settings_for(tmp_path_factory.mktemp("proxy"), engine.url)) as proxy:
        yield proxy


@contextmanager
def raw_engine(known: FakeEngine, answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """An engine that tells of itself as another does, and answers chat calls with whatever bytes it likes."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=talk, args=(peer,), daemon=True).start()

    def talk(peer: socket.socket) -> None:
        # Whoever asked may have left before the answer.
        with peer, suppress(OSError):
            asked = peer.makefile("rb")
            line = asked.readline().decode()
            if not line:
                return
            headers = dict(iter(lambda: asked.readline().decode().strip().lower().partition(": ")[::2], ("", "")))
            body = asked.read(int(headers.get("content-length", 0)))
            path = line.split(" ")[1]
            if path.endswith("/chat/completions") and b"1048576" not in body:
                answer(peer)
                return
            told = httpx.request(line.split(" ")[0], known.url + path, content=body or None, headers=JSON, verify=False)
            head = f"HTTP/1.1 {told.status_code} X\r\ncontent-length: {len(told.content)}\r\nconnection: close\r\n\r\n"
            peer.sendall(head.encode() + told.content)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        thread.join()
        listener.close()


JSON = {"content-type": "application/json"}
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "kinds"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", {"engine_malformed", "engine_unreachable", "engine_cut"}),
        (CHUNKED + b"ZZZ\r\nabc", {"engine_malformed", "engine_cut"}),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 100_000 + b"\r\n\r\n", {"engine_malformed", "engine_cut"}),
        (
            b"HTTP/1.1 429 Busy\r\nretry-after: \xb2\r\ncontent-length: 24\r\n\r\n" + b'{"error":{"message":"x"}}'[:24],
            {"engine_error", "engine_busy"},
        ),
    ],
    ids=["no HTTP", "no chunk", "endless header", "odd retry-after"],
)
@pytest.mark.parametrize("n", [1, 3])
def test_an_engine_that_speaks_no_http_is_a_recorded_failure(
    engine: FakeEngine, tmp_path: Path, sent: bytes, kinds: set[str], n: int
) -> None:
    """A 502 that may be retried, and no row that waits for its lease."""
    with raw_engine(engine, lambda peer: peer.sendall(sent)) as url, served(settings_for(tmp_path, url)) as proxy:
        client = proxy.rollout()
        answer = client.chat(n=n)
        found = {call["failure"]["kind"] for call in client.calls()}

    assert answer.status_code in {429, 502}
    assert found - {"sibling_failed"} <= kinds


def test_a_stream_that_turns_to_rubbish_ends_by_the_silence_limit(engine: FakeEngine, tmp_path: Path) -> None:
    """Not by the limit of the whole call, an hour later."""
    event = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}\n\n'
    sent = CHUNKED + b"%x\r\n%s\r\nZZZ\r\n" % (len(event), event)
    settings = {"timeouts": {"silence_s": 3}}
    with (
        raw_engine(engine, lambda peer: peer.sendall(sent)) as url,
        served(settings_for(tmp_path, url, **settings)) as proxy,
    ):
        client = proxy.rollout()
        answer = client.post({"messages": [{"role": "user", "content": "x"}], "stream": True})

        assert '"error"' in answer.text
        assert client.call()["failure"]["kind"] in {"engine_stalled", "engine_cut", "engine_malformed"}


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_a_number_that_is_none_never_gets_into_a_record(engine: FakeEngine, tmp_path: Path, number: bytes) -> None:
    """One such value would make all of the rollout's records unreadable."""
    body = b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"x":%s}}' % number
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with (
        raw_engine(engine, lambda peer: peer.sendall(head + body)) as url,
        served(settings_for(tmp_path, url)) as proxy,
    ):
        client = proxy.rollout()

        assert client.chat().json()["error"]["code"] == "engine_malformed"
        assert client.call()["failure"]["kind"] == "engine_malformed"


def test_a_budget_beyond_the_context_is_clamped_to_it(proxy: ServedProxy, engine: FakeEngine) -> None:
    """A budget for a rollout says nothing about one call."""
    client = proxy.rollout(token_budget=100_000)

    assert client.chat().status_code == 200
    assert engine.requests[-1].body["max_tokens"] < 4096


def test_a_rollout_over_its_time_stays_expired(proxy: ServedProxy) -> None:
    """Finishing it does not make it an ordinary one."""
    client = proxy.rollout(ttl_s=0.05)
    threading.Event().wait(0.1)

    assert proxy.control.post(f"/rollouts/{client.rollout_id}/finish").json()["state"] == "expired"


def test_a_deep_outcome_is_refused(proxy: ServedProxy) -> None:
    """Once stored it could not be told again."""
    client = proxy.rollout()
    deep = '{"x":' * 200 + "1" + "}" * 200
    answer = proxy.control.put(f"/rollouts/{client.rollout_id}/outcome", content=deep)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert proxy.control.get("/rollouts").status_code == 200


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "http://169.254.169.254/x"},
        {"type": "image", "source": {"url": "http://169.254.169.254/x"}},
        {"type": "input_audio", "input_audio": {"data": "http://169.254.169.254/x"}},
        {"type": "video", "video": "file:///etc/passwd"},
        {"type": "tool_result", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]},
        {"type": "image_embeds", "image_embeds": "AAAA"},
    ],
)
def test_media_is_found_wherever_a_part_holds_it(proxy: ServedProxy, engine: FakeEngine, part: dict[str, Any]) -> None:
    """Nothing that an engine could fetch, and no tensors."""
    asked = len(engine.requests)
    answer = proxy.rollout().post({"messages": [{"role": "user", "content": [part]}]})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_url_refused")
    assert len(engine.requests) == asked


def test_n_choices_are_n_calls_to_the_limits(engine: FakeEngine, tmp_path: Path) -> None:
    """One request cannot take more than its rollout may."""
    limits = {"limits": {"calls_at_once_per_rollout": 4}}
    with served(settings_for(tmp_path, engine.url, **limits)) as proxy:
        client = proxy.rollout()

        assert client.chat(n=4, max_tokens=2).status_code == 200
        assert client.chat(n=5, max_tokens=2).status_code == 429


def test_a_store_file_that_is_gone_is_noticed(engine: FakeEngine, tmp_path: Path) -> None:
    """Writing to a removed file succeeds, in vain."""
    with served(settings_for(tmp_path, engine.url)) as proxy:
        ready = proxy.control.get("/readyz").status_code
        (tmp_path / "rollpin.db").rename(tmp_path / "elsewhere.db")

        assert (ready, proxy.control.get("/readyz").status_code) == (200, 503)


def test_an_engine_that_became_another_is_seen(engine: FakeEngine, proxy: ServedProxy) -> None:
    """At the same address, between two looks, without a call that failed."""
    engine.stop()
    with FakeEngine("vllm", port=int(engine.url.rpartition(":")[2]), model="other"):
        proxy.do(proxy.wiring.pool.look())
        (seen,) = proxy.control.get("/engines").json()["engines"]
    engine.restart()
    proxy.do(proxy.wiring.pool.look())

    assert seen["model"] == "other"
