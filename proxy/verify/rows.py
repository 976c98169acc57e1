"""The rows of one rollout held against one another: numbers, deliveries, shared bodies, shared prompts.

Nothing here relies on what it checks: rows that lead nowhere are faults and not errors.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.counted import counted
from proxy.ids import ID_BYTES
from proxy.model import JsonObject
from proxy.record.database import Connection, Row
from proxy.verify.faults import CheckName, Fault

_ROWS = "select * from calls where rollout_id = ? order by seq"
_BODIES = "select hash, previous, body from bodies where rollout_id = ?"
_DELIVERED = """
select call_id, count(*) as number from deliveries
where call_id in (select call_id from calls where rollout_id = ?) group by call_id
"""


@dataclass(frozen=True, slots=True)
class Book:
    """All that the store holds of one rollout, as rows."""

    rollout: Row
    rows: tuple[Row, ...]
    kept: Mapping[str, JsonObject]
    """Parsed documents by call; those that do not parse are left out."""
    bodies: Mapping[bytes, Row]
    deliveries: Mapping[str, int]

    def fault(self, check: CheckName, message: str, call_id: str | None = None) -> Fault:
        return Fault(check, message, self.rollout["rollout_id"], call_id)


def read_book(connection: Connection, rollout: Row) -> Book:
    """One rollout's rows."""
    rollout_id = rollout["rollout_id"]
    rows = tuple(connection.execute(_ROWS, (rollout_id,)))
    parsed = {row["call_id"]: _parsed(row["document"]) for row in rows}
    return Book(
        rollout=rollout,
        rows=rows,
        kept={call_id: document for call_id, document in parsed.items() if document is not None},
        bodies={row["hash"]: row for row in connection.execute(_BODIES, (rollout_id,))},
        deliveries={row["call_id"]: row["number"] for row in connection.execute(_DELIVERED, (rollout_id,))},
    )


def check_rows(book: Book) -> Iterator[Fault]:
    """Everything that can be said before a document is put together."""
    yield from _check_rollout(book)
    yield from _check_numbers(book)
    yield from _check_deliveries(book)
    yield from _check_bodies(book)
    yield from _check_documents(book)
    yield from _check_prompts(book)


def _parsed(text: str | None) -> JsonObject | None:
    """A document; of a call without outcome an empty one."""
    try:
        value: Any = json.loads(text) if text is not None else {}
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _check_rollout(book: Book) -> Iterator[Fault]:
    if book.rollout["state"] == "deleted" and book.rows:
        yield book.fault("rollouts", f"deleted, and still holds {counted(len(book.rows), 'call')}")


def _check_numbers(book: Book) -> Iterator[Fault]:
    """Calls are numbered without gaps, and so are the draws on one conversation."""
    if [row["seq"] for row in book.rows] != list(range(len(book.rows))):
        calls, last = counted(len(book.rows), "call"), len(book.rows) - 1
        yield book.fault("numbers", f"{calls}, not numbered 0 to {last}: one is missing")
    draws = defaultdict[str, defaultdict[int, list[int]]](lambda: defaultdict(list))
    for row in book.rows:
        draws[row["context"]][row["occurrence"]].append(row["choice"])
    for context, sets in draws.items():
        yield from _check_draws(book, context, sets)


def _check_draws(book: Book, context: str, sets: Mapping[int, list[int]]) -> Iterator[Fault]:
    """The occurrences on one conversation, and the choices of each: one request may ask for more than another."""
    for what, numbers in (
        ("occurrences", list(sets)),
        *((f"choices of occurrence {n}", sets[n]) for n in sorted(sets)),
    ):
        if sorted(numbers) != list(range(len(numbers))):
            told = ", ".join(map(str, sorted(numbers)))
            yield book.fault("numbers", f"{what} on {context} are {told}: one is missing or twice")


def _check_deliveries(book: Book) -> Iterator[Fault]:
    for row in book.rows:
        if not book.deliveries.get(row["call_id"]):
            yield book.fault("deliveries", "no delivery: nobody asked for it", row["call_id"])


def _check_bodies(book: Book) -> Iterator[Fault]:
    """Hashes are those of what they name, and every name leads somewhere."""
    for name, row in book.bodies.items():
        if hashlib.sha256((row["previous"] or b"") + row["body"].encode()).digest() != name:
            yield book.fault("bodies", f"body {name.hex()[:16]}… is not what its hash names")
        if row["previous"] is not None and row["previous"] not in book.bodies:
            yield book.fault("bodies", f"body {name.hex()[:16]}…: the one before it is missing")
    for row in book.rows:
        kept = book.kept.get(row["call_id"], {}).get("request")
        for missing in set(_named_bodies(kept)) - {body.hex() for body in book.bodies}:
            yield book.fault("bodies", f"body {missing[:16]}… of the request is missing", row["call_id"])


def _named_bodies(value: Any, key: str = "") -> Iterator[str]:
    """Every hash that a kept request names; `differing` holds the client's own text, and no names."""
    if key == "differing":
        return
    match value:
        case str():
            yield value
        case dict():
            for name, item in value.items():
                yield from _named_bodies(item, name)
        case list():
            for item in value:
                yield from _named_bodies(item)


def _check_documents(book: Book) -> Iterator[Fault]:
    """An outcome has a document, and one that parses."""
    for row in book.rows:
        has_outcome = row["state"] in {"done", "failed"}
        if row["call_id"] not in book.kept:
            yield book.fault("documents", "the document is no JSON object", row["call_id"])
        elif has_outcome and row["document"] is None and row["failure_kind"] != "proxy_died":
            yield book.fault("documents", f"{row['state']}, and has no document", row["call_id"])
        if row["state"] == "failed" and row["failure_kind"] is None:
            yield book.fault("documents", "failed, and does not say how", row["call_id"])


def _check_prompts(book: Book) -> Iterator[Fault]:
    """Every prompt can be put together from the calls that it leans on, and has as many ids as the row says."""
    rows = {row["call_id"]: row for row in book.rows}
    lengths = dict[str, int]()
    for row in book.rows:
        if row["prompt_ids"] is None:
            continue
        if broken := _lean_on(row["call_id"], rows, lengths):
            yield book.fault("prompts", broken, row["call_id"])
            continue
        prompt = lengths[row["call_id"]] - len(row["completion_ids"] or b"") // ID_BYTES
        if prompt != row["prompt_tokens"]:
            yield book.fault(
                "prompts", f"{counted(prompt, 'id')}, and the row counts {row['prompt_tokens']}", row["call_id"]
            )
    leaning = Counter(row["prompt_base_call_id"] for row in book.rows if row["prompt_ids"] is None)
    for base in leaning:
        if base is not None:
            yield book.fault("prompts", "a call without a prompt leans on this one", base)


def _lean_on(call_id: str, rows: Mapping[str, Row], lengths: dict[str, int]) -> str | None:
    """Count the ids of a call and of all that it leans on; or why they cannot be put together."""
    chain, step = list[Row](), call_id
    while step is not None and step not in lengths:
        row = rows.get(step)
        if row is None or row["prompt_ids"] is None:
            return f"leans on {step}, which has no ids here"
        if row in chain:
            return "leans on itself"
        chain.append(row)
        step = row["prompt_base_call_id"]
    for row in reversed(chain):
        shared, base = row["prompt_shared"] or 0, row["prompt_base_call_id"]
        if shared > lengths.get(base, 0):
            return f"shares {counted(shared, 'id')} with {base}, which has {lengths.get(base, 0)}"
        own = len(row["prompt_ids"]) + len(row["completion_ids"] or b"")
        if own % ID_BYTES:
            return "ids are cut in the middle of one"
        lengths[row["call_id"]] = shared + own // ID_BYTES
    return None
