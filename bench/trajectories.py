"""What reading a long rollout costs: memory at its peak, and how long the event loop stands still.

python -m bench.trajectories            # 200 turns of up to 20,000 tokens, extending one another
python -m bench.trajectories --anew     # the same, each prompt tokenised anew: a row for each turn
"""

import argparse
import asyncio
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from proxy.model import Parent
from proxy.planes import make_app
from proxy.wiring import Wiring, wire
from tests import make
from tests.served import ADMIN, settings_for

TURNS, TOKENS, GENERATED = 200, 20_000, 50
TICK_S = 0.001
ROUTES = ("/rollouts/r1/trajectory", "/trajectories", "/rollouts/r1/why", "/rollouts/r1/calls?limit=150")


async def fill(wiring: Wiring, *, anew: bool) -> None:
    """One rollout whose context grows to TOKENS."""
    await wiring.store.create_rollouts([make.rollout("r1")])
    prompt, parent = tuple(range(100, 100 + TOKENS // TURNS)), Parent("root", "first_turn")
    for turn in range(TURNS):
        answer = tuple(1000 + (turn * 7 + place) % 30_000 for place in range(GENERATED))
        planned = make.plan(make.ask(make.user(f"turn {turn}"), of=make.rollout("r1")), parent=parent)
        asking = make.reservation(planned)
        planned = make.reserved(planned, await wiring.store.reserve(asking))
        await wiring.store.record([make.call(planned, make.completion(prompt, answer))])
        await wiring.store.deliver(make.delivery(asking.delivery_id))
        fresh = tuple(5 + (turn * 3 + place) % 50_000 for place in range(TOKENS // TURNS - GENERATED))
        parent = Parent("resolved", "one_match", planned.call_id)
        prompt = (turn + 1, *prompt[1:], *answer, *fresh) if anew else (*prompt, *answer, *fresh)
    await wiring.store.close_rollout(make.rollout("r1").rollout_id, "finished", make.STARTED_AT)


async def longest_pause(work: Callable[[], Awaitable[int]]) -> tuple[float, float, int]:
    """Seconds that some work took, the longest time in which nothing else could run, and the bytes it gave."""
    worst, over = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal worst
        while not over.is_set():
            before = time.perf_counter()
            await asyncio.sleep(TICK_S)
            worst = max(worst, time.perf_counter() - before - TICK_S)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    started = time.perf_counter()
    size = await work()
    took = time.perf_counter() - started
    over.set()
    await watching
    return took, worst, size


async def run(*, anew: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_for(Path(folder), "http://127.0.0.1:1")
        wiring = await wire(settings)
        await fill(wiring, anew=anew)
        app = make_app(wiring, data=False, control=True)

        async def ask(path: str) -> int:
            """Bytes of an answer, none of which are kept."""
            size = 0

            async def send(message: dict) -> None:  # type: ignore[type-arg]
                nonlocal size
                size += len(message.get("body", b""))

            url = httpx.URL(f"http://x{path}")
            scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.4"},
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "path": url.path,
                "raw_path": url.raw_path,
                "query_string": url.query,
                "headers": [(b"authorization", f"Bearer {ADMIN}".encode()), (b"host", b"x")],
                "server": ("x", 80),
                "client": ("x", 1),
                "root_path": "",
            }

            async def receive() -> dict:  # type: ignore[type-arg]
                return {"type": "http.request", "body": b"", "more_body": False}

            await app(scope, receive, send)
            return size

        for path in ROUTES:
            took, worst, size = await longest_pause(lambda path=path: ask(path))
            tracemalloc.start()
            await ask(path)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            pause = f"pause {worst * 1000:5.0f} ms"
            print(f"{path:32} {size / 1e6:7.1f} MB  {took:6.2f} s  {pause}  peak {peak / 1e6:6.0f} MB")
        await wiring.upstream.aclose()
        await wiring.store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anew", action="store_true")
    asyncio.run(run(anew=parser.parse_args().anew))
