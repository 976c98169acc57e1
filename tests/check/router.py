"""A machine between proxy and engine that passes requests on without the fields that it does not know."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx


@contextmanager
def router(engine_url: str, *, drops: tuple[str, ...] = (), hides: tuple[str, ...] = ()) -> Iterator[str]:
    """Its URL. `drops` are fields of bodies; `hides` are paths that it answers with 404."""
    client = httpx.Client(base_url=engine_url, timeout=30, verify=False)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(httpx.Response(404, json={}) if self.path in hides else client.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            kept = {name: value for name, value in body.items() if name not in drops}
            self.answer(client.post(self.path, json=kept))

        def answer(self, response: httpx.Response) -> None:
            self.send_response(response.status_code)
            self.send_header("content-type", response.headers.get("content-type", "application/json"))
            self.send_header("content-length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, *_: Any) -> None:
            """Nothing to say."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        client.close()
