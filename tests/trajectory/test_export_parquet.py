"""Parquet files that pyarrow reads back; needs the `parquet` extra, and fails where it is missing."""

from importlib import import_module
from pathlib import Path

import pytest

from proxy.trajectory import export
from tests.trajectory.test_export import documents


def test_parquet_says_the_same_as_json_lines(tmp_path: Path) -> None:
    """Column by column."""
    path = tmp_path / "rows.parquet"

    count = export.write_parquet(documents(), path)

    table = import_module("pyarrow.parquet").read_table(path)
    assert count == 3
    assert table.column_names == list(export.COLUMNS)
    assert table.to_pylist() == list(export.branch_rows(documents()))


def test_long_exports_are_written_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory does not grow with the export."""
    monkeypatch.setattr(export, "TOKENS_A_ROW_GROUP", 5)
    path = tmp_path / "rows.parquet"

    export.write_parquet(documents(), path)

    assert import_module("pyarrow.parquet").ParquetFile(path).metadata.num_row_groups == 3


def test_an_export_of_nothing_still_has_its_columns(tmp_path: Path) -> None:
    """A reader needs no special case."""
    path = tmp_path / "rows.parquet"

    export.write_parquet([], path)

    assert import_module("pyarrow.parquet").read_table(path).column_names == list(export.COLUMNS)
