#!/usr/bin/env python3
"""Health probe of the container image, on the standard library alone so that it starts in no time.

    rollpin-probe /healthz              asks Rollpin, where environment and settings file put its data plane
    rollpin-probe http://HOST:PORT/...  asks that address

Exit status 0 if the answer is 2xx; else 1, and one line that says why not. Flags of `rollpin serve` are not seen.
"""

import http.client
import os
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


def setting(name: str, default: Any = None) -> Any:
    """A setting as Rollpin sees it: the environment wins over the file, and an empty variable is as good as none."""
    file = Path(os.environ.get("ROLLPIN_CONFIG") or "rollpin.toml")
    kept = tomllib.loads(file.read_text()) if file.is_file() else {}
    return os.environ.get(f"ROLLPIN_{name.upper()}") or kept.get(name, default)


def data_plane() -> str:
    """Where the settings put Rollpin's data plane, which answers /healthz and /readyz too."""
    host = str(setting("host", "127.0.0.1"))
    host = LOOPBACK.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{setting('port', 8080)}"


def ask(target: str) -> tuple[int, str]:
    """Status and body of a GET."""
    parts = urlsplit(f"{data_plane()}{target}" if target.startswith("/") else target)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path or "/")
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
