"""Prints what a store of this version looks like, for old/: run once for each new migration, and kept for ever."""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from proxy.model import CallId, JsonObject, Parent
from proxy.record.sqlite import SqliteStore
from tests import make

NEXT_PROMPT = (*make.PROMPT, *make.ANSWER, make.END, 9)


async def fill(store: SqliteStore) -> None:
    """A call, one that goes on from it, and a request for two choices that failed and was answered at its retry."""
    (rollout,) = await store.create_rollouts([make.rollout(metadata={"task": "sum"})])
    await turn(store, "a", make.user(), prompt=make.PROMPT)
    talk = (make.user(), make.assistant(), make.user("and 3+3?"))
    await turn(store, "b", *talk, prompt=NEXT_PROMPT, parent=Parent("resolved", "exact", CallId("call_a")))
    await retried_set(store)
    await store.set_outcome(rollout.rollout_id, {"reward": 1})


async def turn(store: SqliteStore, name: str, *talk: JsonObject, prompt: tuple[int, ...], **changes: object) -> None:
    planned = make.plan(make.ask(*talk), call_id=f"call_{name}", request_id=f"req_{name}", **changes)
    asking = make.reservation(planned, delivery_id=f"delivery_{name}", repeat=make.repeat(f"ask_{name}"))
    planned = make.reserved(planned, await store.reserve(asking))
    await store.record([make.call(planned, make.completion(prompt))])
    await store.deliver(make.delivery(asking.delivery_id))


async def retried_set(store: SqliteStore) -> None:
    plans = make.plans(2, make.ask(make.user("Two, please")), request_id="req_c")
    plans = tuple(replace(plan, call_id=CallId(f"call_c{choice}")) for choice, plan in enumerate(plans))
    asking = make.reservation(*plans, delivery_id="delivery_c", repeat=make.repeat("ask_c"))
    given = await store.reserve(asking)
    await store.record([make.call(make.reserved(plan, given), make.failure()) for plan in plans])
    await store.deliver(make.delivery("delivery_c", "error_told"))
    given = await store.reserve(replace(asking, request_id="req_d", delivery_id="delivery_d"))
    await store.record([make.call(make.reserved(plan, given)) for plan in plans])
    await store.deliver(make.delivery("delivery_d"))


async def main(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await fill(store)
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        print("\n".join(connection.iterdump()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "store.db"))
