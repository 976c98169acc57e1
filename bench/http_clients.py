"""Which transport the proxy should reach engines with: httpx's own against aiohttp's under httpx, side by side.

    .venv/bin/python -m bench.http_clients [--calls 600] [--at-once 32] [--rounds 3]

The server is a few lines of asyncio in a process of its own that answers every POST with the same 34 kB.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import httpx
from httpx_aiohttp import AiohttpTransport

REQUEST = b"x" * 16_000
REPLY = b"y" * 34_000
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(REPLY) + REPLY


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read a request to its end, answer, and again."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            writer.write(ANSWER)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve(told: Connection) -> None:
    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def rate(client: httpx.AsyncClient, url: str, calls: int, at_once: int) -> float:
    """Calls a second."""
    room = asyncio.Semaphore(at_once)

    async def call() -> None:
        async with room, client.stream("POST", url, content=REQUEST) as response:
            async for _part in response.aiter_bytes():
                pass

    async with client:
        started = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(calls)))
        return calls / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url, ratios = f"http://127.0.0.1:{ours.recv()}/", []
    for number in range(arguments.rounds):
        plain = asyncio.run(rate(httpx.AsyncClient(), url, arguments.calls, arguments.at_once))
        over_aiohttp = httpx.AsyncClient(transport=AiohttpTransport())
        aiohttp = asyncio.run(rate(over_aiohttp, url, arguments.calls, arguments.at_once))
        ratios.append(aiohttp / plain)
        print(f"round {number}: httpx {plain:.0f}/s, httpx over aiohttp {aiohttp:.0f}/s, ratio {ratios[-1]:.2f}")
    server.terminate()
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
