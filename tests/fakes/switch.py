"""An address behind which the engine can be replaced, as behind a service that points at another pod."""

import asyncio
import contextlib
import threading
from urllib.parse import urlsplit


class Switch:
    """Forwards each connection to the engine of the moment it was opened in; it stays with that one."""

    def __init__(self, url: str) -> None:
        self._target = url
        self._loop = asyncio.new_event_loop()
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="switch")
        self.url = ""

    def __enter__(self) -> "Switch":
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._link, "127.0.0.1", 0), self._loop).result()
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def turn(self, url: str, *, drop: bool = False) -> None:
        """Point at another engine; `drop` ends what leads to the old one, as its death would."""

        async def turned() -> None:
            self._target = url
            if drop:
                self._drop()

        asyncio.run_coroutine_threadsafe(turned(), self._loop).result()

    def _drop(self) -> None:
        for writer in self._links:
            writer.transport.abort()

    async def _end(self) -> None:
        self._drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        target = urlsplit(self._target)
        ends = {writer}
        try:
            there, back = await asyncio.open_connection(target.hostname, target.port)
            ends.add(back)
            self._links |= ends
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        except ConnectionRefusedError:
            return
        finally:
            self._links -= ends
            self._tasks.discard(task)
            for end in ends:
                end.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(2**16):
            writer.write(part)
            await writer.drain()
    writer.close()
