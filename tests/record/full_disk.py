"""Records into a file that may not grow, then into one that may again; prints what the store said."""

import asyncio
import resource
import sys
from pathlib import Path

from proxy.errors import StoreDown
from proxy.record.sqlite import SqliteStore
from tests import make

LONG_PROMPT = tuple(range(200_000))
ROOM_BYTES = 300_000


async def main(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    (rollout,) = await store.create_rollouts([make.rollout()])
    planned = make.plan(make.ask(of=rollout))
    await store.reserve(make.reservation(planned))
    call = make.call(planned, make.completion(LONG_PROMPT))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, hard))
    for _ in range(2):
        try:
            await store.record([call])
        except StoreDown as error:
            print("down:", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.record([call])
    document = await store.call(planned.call_id)
    assert document is not None
    print("recorded:", len(document["prompt_token_ids"]))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
