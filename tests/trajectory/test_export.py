"""Rows of an export: one for each branch, the same columns always."""

import io
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from proxy.model import JsonObject
from proxy.trajectory import export
from proxy.trajectory.assemble import assemble
from proxy.trajectory.documents import trajectory_document
from proxy.trajectory.rules import TrajectoryRules
from tests import make
from tests.trajectory.tape import Tape

PAGE = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text("utf-8")


def documents() -> list[JsonObject]:
    """Two rollouts: one with a fork, an outcome and every kind of span, one that is bare."""
    tape = Tape()
    start = tape.root([1], [10], outcome={"reward": 1}, sampling={"constrained": ["tool_choice"]})
    tape.child(start, [2], [11])
    tape.child(start, [3], [12])
    bare = Tape()
    bare.root([1], [10])
    rich = make.rollout("r1", outcome={"reward": 1, "note": "é"}, metadata={"task": 7}, revision=2)
    pairs = ((rich, tape), (make.rollout("r2"), bare))
    return [trajectory_document(assemble(one, calls.calls, TrajectoryRules())) for one, calls in pairs]


def test_json_lines_hold_a_row_for_each_branch() -> None:
    """With what the rollout and the branch say."""
    out = io.StringIO()

    count = export.write_json_lines(documents(), out)

    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert count == len(rows) == 3
    assert [row["rollout_id"] for row in rows] == ["r1", "r1", "r2"]
    assert (rows[0]["reward"], rows[0]["revision"], rows[2]["reward"]) == (1.0, 2, None)
    assert json.loads(rows[0]["outcome"]) == {"reward": 1, "note": "é"}
    assert (rows[1]["forked_from_branch"], rows[1]["forked_from_length"]) == ("c2", 2)
    assert rows[0]["token_ids"] == [1, 10, 3, 12]
    assert rows[0]["loss_mask"] == [0, 0, 0, 1]


def test_every_row_has_every_column_in_order() -> None:
    """Readers infer a schema from the first lines."""
    assert all(list(row) == list(export.COLUMNS) for row in export.branch_rows(documents()))


def test_every_column_is_documented() -> None:
    """With its type."""
    section = PAGE.split("\n## Export\n")[1].split("\n#")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (\S.*?) \|", section, re.MULTILINE))

    assert told == {name: shown(kind) for name, kind in export.COLUMNS.items()}


def shown(kind: Any) -> str:
    """A column's type in the notation of the page."""
    if isinstance(kind, list):
        return f"list of {shown(kind[0])}"
    return "struct" if isinstance(kind, dict) else str(kind).rstrip("_")


def test_an_export_of_nothing_is_empty() -> None:
    """No rollouts, no lines."""
    assert export.write_json_lines([], io.StringIO()) == 0


def test_without_pyarrow_parquet_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is written."""

    def missing(name: str) -> Any:
        raise ImportError(name) if name.startswith("pyarrow") else import_module(name)

    monkeypatch.setattr(export, "import_module", missing)

    with pytest.raises(export.ParquetMissing, match="pip install pyarrow"):
        export.write_parquet(documents(), tmp_path / "rows.parquet")
    assert not list(tmp_path.iterdir())
