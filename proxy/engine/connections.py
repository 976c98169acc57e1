"""The connections to engines: kept for a while, and counted as they are opened.

A connection ends at one server for as long as it lasts. So whether a URL leads to another engine than before is to be
asked again when another connection was opened to it, and not before (engine/pool.py).
"""

import functools
import ssl
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

# Both engines' servers close idle connections after 5 s; reusing one at that moment is a spurious failure.
KEEPALIVE_EXPIRY_S = 2.0


@functools.cache
def _trust() -> ssl.SSLContext:
    """Whose certificates are believed. Reading them takes longer than all the rest of a start, so it is done once."""
    return httpx.create_ssl_context()


class Connections:
    """All connections of one proxy that calls may use."""

    def __init__(self, timeout: httpx.Timeout) -> None:
        self._timeout = timeout
        self._opened = Counter[tuple[str, str, int | None]]()
        self._left: list[httpx.AsyncClient] = []
        self.on_opened: Callable[[], None] = lambda: None
        """Called whenever another one was opened, before anything is sent over it."""
        self.client = self._new()

    def opened(self, url: str) -> int:
        """How many were opened so far to the server that answers under a URL."""
        return self._opened[_origin(url)]

    def leave(self) -> None:
        """Open all anew for what is asked from now on; what runs ends where it began."""
        self._left.append(self.client)
        self.client = self._new()

    async def aclose(self) -> None:
        for client in (*self._left, self.client):
            await client.aclose()

    def _new(self) -> httpx.AsyncClient:
        transport = AiohttpTransport(verify=_trust(), client=self._session)
        return httpx.AsyncClient(transport=transport, timeout=self._timeout)

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=_trust(), keepalive_timeout=KEEPALIVE_EXPIRY_S, limit=0)
        return aiohttp.ClientSession(connector=connector, trace_configs=[self._counting()])

    def _counting(self) -> aiohttp.TraceConfig:
        counting = aiohttp.TraceConfig()

        async def begun(_session: Any, asked: SimpleNamespace, told: aiohttp.TraceRequestStartParams) -> None:
            asked.url = told.url

        async def opened(_session: Any, asked: SimpleNamespace, _told: Any) -> None:
            self._opened[_origin(str(asked.url.origin()))] += 1
            self.on_opened()

        counting.on_request_start.append(begun)
        counting.on_connection_create_end.append(opened)
        return counting


@functools.cache
def _origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port, a default port being none."""
    read = httpx.URL(url)
    return read.scheme, read.host, read.port
