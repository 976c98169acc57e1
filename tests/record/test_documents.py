"""A call's document says what docs/records.md says it does, no more and no less."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.model import VolatileLine
from proxy.record import documents
from proxy.record.rows import LATE, PROXY_DIED
from proxy.record.sqlite import SqliteStore
from tests import make

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "records.md").read_text("utf-8")

# Values of other people's making: what is inside them is not ours to document.
OPAQUE = {
    "lane_signals",
    "sampling.asked",
    "sampling.effective",
    "sampling.length",
    "sampling.shaping",
    "top_logprobs",
    "message",
    "engine_message",
    "messages",
    "request",
    "usage",
    "profile.values",
    "outcome",
}


def fields(value: Any, name: str = "") -> Iterator[str]:
    """Names of a document's leaves, in the notation of the documentation."""
    if isinstance(value, dict) and name not in OPAQUE:
        for key, item in value.items():
            yield from fields(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict) and name not in OPAQUE:
        yield from fields(value[0], f"{name}[]")
    else:
        yield name


def documented(heading: str) -> set[str]:
    """First cells of the table under a heading."""
    section = DOCUMENTATION.split(f"\n{heading}\n")[1].split("\n#")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


@pytest.fixture
async def full(tmp_path: Path) -> list[dict[str, Any]]:
    """A completed and a failed call with every field in use."""
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.create_rollouts([make.rollout()])
    asked = make.ask(make.user(), volatile=(VolatileLine(0, "clock", "12:00"),))
    found = []
    for outcome in (make.completion(logprob_entries=({"token": "4"},)), make.failure()):
        planned = make.plan(asked)
        asking = make.reservation(planned)
        planned = make.reserved(planned, await store.reserve(asking))
        await store.record([make.call(planned, outcome)])
        await store.deliver(make.delivery(asking.delivery_id))
        found.append(await store.call(planned.call_id))
    await store.close()
    return [document for document in found if document is not None]


@pytest.mark.anyio
async def test_every_field_is_documented_and_every_documented_field_exists(full: list[dict[str, Any]]) -> None:
    """The documentation is the schema that people script against."""
    completed, failed = full
    leaves = (set(fields(completed)) - {"failure"}) | {name for name in fields(failed) if name.startswith("failure.")}

    assert leaves == documented("## The call: `rollpin.call/1`")


@pytest.mark.anyio
async def test_a_failed_document_has_the_same_fields(full: list[dict[str, Any]]) -> None:
    """Null stands where a field does not apply; no field is left out."""
    completed, failed = full

    assert list(completed) == list(failed)


@pytest.mark.anyio
async def test_a_reserved_document_has_the_same_fields(tmp_path: Path, full: list[dict[str, Any]]) -> None:
    """Whoever reads a running rollout needs no special case."""
    store = SqliteStore(tmp_path / "other.db")
    await store.open()
    await store.create_rollouts([make.rollout()])
    planned = make.plan()
    await store.reserve(make.reservation(planned))

    document = await store.call(planned.call_id)
    assert document is not None
    assert set(document) == set(full[0])
    assert set(document["seed"]) == set(full[0]["seed"])
    await store.close()


@pytest.mark.anyio
async def test_a_document_says_what_the_plan_decided(full: list[dict[str, Any]]) -> None:
    """Values stand under their own names."""
    completed = full[0]

    assert completed["sampling"]["effective"]["temperature"] == 1.0
    assert completed["seed"] == {
        "value": 1000,
        "source": "minted",
        "occurrence": 0,
        "choice": 0,
        "client_seed": None,
        "run_seed": None,
    }
    assert completed["segments"] == [
        {"start": 0, "end": 3, "seed": 1000, "weight_version": None, "engine": "e1", "kv_version": None, "notes": []}
    ]
    assert completed["profile"]["name"] == "train"
    assert completed["engine"]["kind"] == "vllm"
    assert completed["replayable"] == {"value": "no", "reasons": ["engine_not_deterministic"]}
    assert completed["capture"] == {"complete": True, "gaps": []}


def test_the_stores_own_failure_kinds_are_documented() -> None:
    """Each word that a record may carry is explained."""
    assert {PROXY_DIED.kind, LATE.kind} <= documented("### Failure kinds")


@pytest.mark.anyio
async def test_a_page_of_long_calls_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's limit counts calls, but memory is spent on ids."""
    monkeypatch.setattr(documents, "PAGE_IDS", 10)
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    (rollout,) = await store.create_rollouts([make.rollout()])
    for _ in range(5):
        planned = make.plan()
        await store.reserve(make.reservation(planned))
        await store.record([make.call(planned)])

    sizes, cursor = list[int](), None
    while not sizes or cursor:
        page = await store.calls(rollout.rollout_id, cursor, 4)
        sizes, cursor = [*sizes, len(page.items)], page.cursor
    assert sizes == [2, 2, 1]
    await store.close()
