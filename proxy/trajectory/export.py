"""Trajectories as tables: a row for each branch, as JSON Lines or Parquet, with one schema; docs/trajectories.md.

What has no fixed shape (outcomes, metadata) is JSON text, so that every file of every run has the same columns.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from proxy.model import JsonObject

# Tokens that are held before a row group is written: some tens of megabytes.
TOKENS_A_ROW_GROUP = 1_000_000

# Column types, by pyarrow's own names; a list is in brackets, a struct in braces.
COLUMNS: dict[str, Any] = {
    "rollout_id": "string",
    "run": "string",
    "group": "string",
    "sample": "int64",
    "attempt": "int64",
    "profile": "string",
    "state": "string",
    "revision": "int64",
    "reward": "float64",
    "outcome": "string",
    "metadata": "string",
    "rollout_trainable": "bool_",
    "capture_complete": "bool_",
    "branch_id": "string",
    "kind": "string",
    "lane": "string",
    "maybe_side": "bool_",
    "trainable": "bool_",
    "reasons": ["string"],
    "forked_from_branch": "string",
    "forked_from_length": "int64",
    "call_ids": ["string"],
    "owned_call_ids": ["string"],
    "call_outcomes": [{"call_id": "string", "outcome": "string"}],
    "finish_reason": "string",
    "token_ids": ["int64"],
    "loss_mask": ["int8"],
    "logprobs": ["float64"],
    "weight_spans": [
        {
            "start": "int64",
            "end": "int64",
            "call_id": "string",
            "weight_version": "string",
            "kv_version": "string",
            "engine": "string",
        }
    ],
    "seeds": [{"start": "int64", "end": "int64", "call_id": "string", "seed": "int64"}],
    "constrained_spans": [{"start": "int64", "end": "int64", "call_id": "string", "fields": ["string"]}],
}


class ParquetMissing(RuntimeError):
    """Parquet was asked for, and the library that writes it is not installed."""

    def __init__(self) -> None:
        super().__init__("Parquet needs pyarrow: pip install pyarrow, or export JSON Lines")


def branch_rows(documents: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """A row for each branch of `rollpin.trajectory/1` documents, every column present."""
    for document in documents:
        shared = _of_rollout(document)
        for branch in document["branches"]:
            row = {**shared, **_of_branch(branch)}
            yield {name: row[name] for name in COLUMNS}


def write_json_lines(documents: Iterable[JsonObject], out: IO[str]) -> int:
    """Write rows as JSON Lines; how many."""
    count = 0
    for count, row in enumerate(branch_rows(documents), 1):  # noqa: B007  the last number is the answer
        out.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n")
    return count


def write_parquet(documents: Iterable[JsonObject], path: Path) -> int:
    """Write rows as a Parquet file, row group by row group; how many. Raises ParquetMissing without pyarrow."""
    arrow, parquet = _pyarrow()
    schema = arrow.schema([(name, _arrow_type(arrow, kind)) for name, kind in COLUMNS.items()])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for rows in _row_groups(branch_rows(documents)):
            writer.write_table(arrow.Table.from_pylist(list(rows), schema=schema))
            count += len(rows)
    return count


def _of_rollout(document: JsonObject) -> JsonObject:
    outcome = document["outcome"]
    reward = (outcome or {}).get("reward")
    same = ("rollout_id", "run", "group", "sample", "attempt", "profile", "state", "revision")
    return {
        **{name: document[name] for name in same},
        "reward": None if reward is None else float(reward),
        "outcome": _text(outcome),
        "metadata": _text(document["metadata"]),
        "rollout_trainable": document["trainable"]["value"],
        "capture_complete": document["health"]["complete"],
    }


def _of_branch(branch: JsonObject) -> JsonObject:
    fork = branch["forked_from"] or {"branch": None, "length": None}
    outcomes = [{"call_id": one["call_id"], "outcome": _text(one["outcome"])} for one in branch["call_outcomes"]]
    return {
        **branch,
        "trainable": branch["trainable"]["value"],
        "reasons": branch["trainable"]["reasons"],
        "forked_from_branch": fork["branch"],
        "forked_from_length": fork["length"],
        "call_outcomes": outcomes,
    }


def _text(value: JsonObject | None) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _row_groups(rows: Iterator[JsonObject]) -> Iterator[Sequence[JsonObject]]:
    """Rows in groups of at most so many tokens; a longer row is a group of its own."""
    group, tokens = list[JsonObject](), 0
    for row in rows:
        if group and tokens + len(row["token_ids"]) > TOKENS_A_ROW_GROUP:
            yield group
            group, tokens = [], 0
        group.append(row)
        tokens += len(row["token_ids"])
    if group:
        yield group


def _pyarrow() -> tuple[Any, Any]:
    """The library, loaded only where it is needed."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ParquetMissing from error


def _arrow_type(arrow: Any, kind: Any) -> Any:
    match kind:
        case [item]:
            return arrow.list_(_arrow_type(arrow, item))
        case dict():
            return arrow.struct([(name, _arrow_type(arrow, item)) for name, item in kind.items()])
        case _:
            return getattr(arrow, kind)()
