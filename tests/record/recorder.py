"""Records calls without end and prints each acknowledged one; to be killed in the middle of it."""

import asyncio
import sys

from proxy.model import Rollout
from proxy.record.opening import store_at
from proxy.record.store import Store
from tests import make

CALLERS = 40


async def record_on(store: Store, rollout: Rollout) -> None:
    """One harness that talks on and on."""
    number = 0
    while True:
        planned = make.plan(make.ask(make.user(str(number)), of=rollout))
        await store.reserve(make.reservation(planned))
        await store.record([make.call(planned, make.completion(answer=(number,)))])
        print(planned.call_id, number, flush=True)
        number += 1


async def main(url: str) -> None:
    store = store_at(url)
    await store.open()
    rollouts = await store.create_rollouts([make.rollout(f"r{n}") for n in range(CALLERS)])
    await asyncio.gather(*(record_on(store, rollout) for rollout in rollouts))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
