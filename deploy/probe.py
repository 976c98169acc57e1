#!/usr/bin/env python3
"""Health probe of the container image, on the standard library alone so that it starts in no time.

    rollpin-probe /healthz              asks Rollpin, where environment and settings file put its control plane
    rollpin-probe http://HOST:PORT/...  asks that address

Exit status 0 if the answer is 2xx; else 1, and one line that says why not. Flags of `rollpin serve` are not seen.
"""

import http.client
import os
import socket
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# Below the timeout of every probe that runs this.
TIMEOUT_S = 4
USAGE = 2
# Where a server that listens on every address is reached from its own machine.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  looked up, never bound


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("rollpin", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def setting(name: str, default: Any = None) -> Any:
    """A setting as Rollpin sees it: the environment wins over the file, and an empty variable is as good as none."""
    file = Path(os.environ.get("ROLLPIN_CONFIG") or "rollpin.toml")
    kept = tomllib.loads(file.read_text()) if file.is_file() else {}
    return os.environ.get(f"ROLLPIN_{name.upper()}") or kept.get(name, default)


def control_plane() -> http.client.HTTPConnection:
    """A connection to where the settings put the control plane."""
    if path := setting("control_socket"):
        return UnixConnection(path)
    apart = setting("control_port")
    host = setting("control_host" if apart else "host", "127.0.0.1")
    return http.client.HTTPConnection(LOOPBACK.get(host, host), int(apart or setting("port", 8080)), timeout=TIMEOUT_S)


def ask(target: str) -> tuple[int, str]:
    """Status and body of a GET."""
    if target.startswith("/"):
        connection, path = control_plane(), target
    else:
        parts = urlsplit(target)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_S)
        path = parts.path or "/"
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(2000).decode(errors="replace")
    finally:
        connection.close()


def main() -> int:
    """Ask once; the exit status."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return USAGE
    try:
        status, body = ask(sys.argv[1])
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stdout.write(f"{sys.argv[1]}: {error}\n")
        return 1
    if 200 <= status < 300:
        return 0
    sys.stdout.write(f"{sys.argv[1]}: {status} {body}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
