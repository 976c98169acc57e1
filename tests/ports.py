"""Ports for programs that have to be told one: none that the kernel would give to somebody else meanwhile."""

import random
import socket
from pathlib import Path

FIRST, USUAL_END = 20_000, 32_768
GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where Linux tells which ports it gives to clients, and to servers that name none."""
_draw = random.SystemRandom()


def free_port() -> int:
    """A port that nobody has, below those that the kernel gives away where it leaves any there."""
    end = int(GIVEN.read_text().split()[0]) if GIVEN.exists() else USUAL_END
    while True:
        port = _draw.randrange(FIRST, end) if end > FIRST else 0
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
            return int(trial.getsockname()[1])
