"""A port of this machine to listen on, or the sentence that says why there is none and which flag mends it."""

import errno
import socket

BACKLOG = 2048


def listen_on(host: str, port: int, *, plane: str = "") -> socket.socket:
    """A socket that listens; port 0 picks a free one.

    Raises OSError with the address, the system's reason and what to do, by `--host` or `--port`; `plane` is what
    stands before those words in the flags of the address.
    """
    # The protocol is named, or event loops do not know that Nagle's delay is to be off.
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # asyncio leaves it on for listeners that it did not make: each second write would wait 40 ms.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        reason = error.strerror or error
        raise OSError(f"cannot listen on {host}:{port}: {reason}; {_remedy(error, plane)}") from error
    return bound


def _remedy(error: OSError, plane: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"stop what listens there, or choose another port by --{plane}port"
        case errno.EACCES:
            return f"choose a port above 1023 by --{plane}port"
    return f"name an address of this machine by --{plane}host"
