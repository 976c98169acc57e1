"""What the proxy costs: the same calls to a simulated engine, straight and through a proxy, side by side in one run.

    .venv/bin/python -m bench.overhead [--calls 400] [--at-once 16] [--rounds 3] [--durability fsync]

Engine and proxy run in processes of their own; the client is the same in both arms, and the arms take turns.
"""

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from httpx_aiohttp import AiohttpTransport

ADMIN = "admin-token-for-the-bench"
START_S = 30
# About the size of a small agent turn: a system text, a task, a tool result.
PROMPT = "You are an agent. " + "Look at the file and fix what is wrong with it. " * 40


@contextmanager
def process(*command: str, **environment: str) -> Iterator[None]:
    running = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        running.terminate()
        running.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(url, timeout=1).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise TimeoutError(url)


async def one_arm(url: str, headers: dict[str, str], calls: int, at_once: int) -> float:
    """Calls a second of one arm."""
    room = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(transport=AiohttpTransport(), headers=headers, timeout=60) as client:

        async def call(number: int) -> None:
            body = {"model": "tiny", "messages": [{"role": "user", "content": f"{PROMPT} {number}"}], "max_tokens": 16}
            extra = {"seed": number, "logprobs": True, "top_logprobs": 0, "return_token_ids": True}
            async with room:
                answer = await client.post(url, json=body | extra)
                answer.raise_for_status()

        started = time.perf_counter()
        await asyncio.gather(*(call(number) for number in range(calls)))
        return calls / (time.perf_counter() - started)


def new_rollout(proxy: str) -> tuple[str, dict[str, str]]:
    created = httpx.post(f"{proxy}/rollouts", json={}, headers={"authorization": f"Bearer {ADMIN}"}, timeout=30).json()
    return f"{created['base_url']}/chat/completions", {"authorization": f"Bearer {created['api_key']}"}


def compare(arguments: argparse.Namespace) -> None:
    engine_port, proxy_port, folder = free_port(), free_port(), tempfile.mkdtemp()
    engine, proxy = f"http://127.0.0.1:{engine_port}", f"http://127.0.0.1:{proxy_port}"
    environment = {
        "ROLLPIN_ENGINES": engine,
        "ROLLPIN_PORT": str(proxy_port),
        "ROLLPIN_STORE": f"sqlite:///{Path(folder) / 'bench.db'}",
        "ROLLPIN_SECRETS_FILE": str(Path(folder) / "secrets.json"),
        "ROLLPIN_ADMIN_TOKEN": ADMIN,
        "ROLLPIN_DURABILITY": arguments.durability,
        "ROLLPIN_LIMITS__CALLS_AT_ONCE_PER_ROLLOUT": "1024",
    }
    with process(sys.executable, "-m", "tests.fakes", "--kind", "vllm", "--port", str(engine_port)):
        wait_for(f"{engine}/v1/models")
        with process(sys.executable, "-m", "proxy", "serve", **environment):
            wait_for(f"{proxy}/readyz")
            report(engine, proxy, arguments)


def report(engine: str, proxy: str, arguments: argparse.Namespace) -> None:
    ratios = []
    print(f"{arguments.calls} calls, {arguments.at_once} at once, durability {arguments.durability}")
    for number in range(arguments.rounds):
        straight = asyncio.run(one_arm(f"{engine}/v1/chat/completions", {}, arguments.calls, arguments.at_once))
        through = asyncio.run(one_arm(*new_rollout(proxy), arguments.calls, arguments.at_once))
        ratios.append(through / straight)
        print(f"round {number}: straight {straight:.0f}/s, through the proxy {through:.0f}/s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durability", choices=("fsync", "wal"), default="fsync")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
