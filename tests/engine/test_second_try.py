"""A connection that dies before the first byte of a reply: the one failure after which a call is sent once more."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.sim.engine import Kind
from tests.fakes import FakeEngine, Say
from tests.patience import PATIENCE_S
from tests.served import served, settings_for


@contextmanager
def dropping(engine_url: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A router that takes the first call and hangs up; its URL, and the calls that it was given."""
    chats: list[dict[str, Any]] = []

    class Router(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_call = self.path == "/v1/chat/completions" and "seed" in json.loads(body)
            if is_call:
                chats.append(json.loads(body))
            if not is_call or len(chats) > 1:
                self._pass_on(body)

        def do_GET(self) -> None:
            self._pass_on(None)

        def _pass_on(self, body: bytes | None) -> None:
            told = {"content-type": "application/json"}
            answer = httpx.request(self.command, engine_url + self.path, content=body, headers=told, timeout=PATIENCE_S)
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_words: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Router) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", chats
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_second_try_is_the_same_draw_under_another_name(tmp_path: Path, kind: Kind) -> None:
    """SGLang, which may be at work on the first, would refuse another of its name."""
    with ExitStack() as running:
        engine = running.enter_context(FakeEngine(kind))
        url, chats = running.enter_context(dropping(engine.url))
        proxy = running.enter_context(served(settings_for(tmp_path, url)))
        engine.script(Say("well"))
        client = proxy.rollout()
        answer = client.chat()
        call = client.call()

    assert (answer.status_code, call["state"], call["earlier_failures"]) == (200, "done", [])
    first, second = (dict(chat) for chat in chats)
    names = [chat.pop("rid", None) for chat in (first, second)]
    assert first == second
    assert (names[0] == names[1]) == (kind == "vllm")
    assert kind == "vllm" or all(name.endswith(call["call_id"]) for name in names)
