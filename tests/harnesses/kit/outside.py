"""Stands where a harness's way out would be: takes every connection, writes down what was wanted, and hangs up."""

import socket
import socketserver
import threading
from typing import Self

# Whoever connects and says nothing is let go of by its end.
PATIENCE_S = 60.0


class Outside:
    """A proxy that leads nowhere, for HTTP_PROXY and HTTPS_PROXY."""

    def __init__(self) -> None:
        self.wanted: list[str] = []
        """The first lines of what came, such as `CONNECT example.org:443 HTTP/1.1`."""
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler(), bind_and_activate=True)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead every library here, save for loopback."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        names = ("http_proxy", "https_proxy", "all_proxy")
        direct = {"no_proxy": "127.0.0.1,localhost,::1", "NODE_USE_ENV_PROXY": "1"}
        return (
            {spelt: url for name in names for spelt in (name, name.upper())} | direct | {"NO_PROXY": direct["no_proxy"]}
        )

    def _handler(self) -> type[socketserver.BaseRequestHandler]:
        wanted = self.wanted

        class Handler(socketserver.BaseRequestHandler):
            request: socket.socket

            def handle(self) -> None:
                self.request.settimeout(PATIENCE_S)
                try:
                    first = self.request.recv(4096).partition(b"\r\n")[0]
                except OSError:
                    return
                wanted.append(first.decode("latin-1"))

        return Handler
