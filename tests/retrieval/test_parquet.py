"""Parquet files hold what the index does, and are whole or not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric.retrieval import gallery
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.parquet import export
from tests.retrieval.clusters import SOURCE, clusters

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("variance", [True, False])
def test_everything_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool, variance: bool
) -> None:
    monkeypatch.setattr(gallery.Gallery.blocks, "__defaults__", (7,))
    items, _ = clusters(20, 5, variance=variance)
    ids = [f"ä {i}" for i in range(20)] if text else [i - 2**60 for i in range(20)]
    export(Index(items, ids), tmp_path / "index.parquet")
    table = parquet.read_table(tmp_path / "index.parquet")
    assert table.column_names == ["id", "kappa", "uncertainty", "mean"] + ["variance"] * variance
    assert table["id"].to_pylist() == ids
    np.testing.assert_array_equal(table["kappa"].to_numpy(), items.kappa)
    np.testing.assert_array_equal(table["uncertainty"].to_numpy(), items.uncertainty)
    for name in ("mean", "variance")[: 1 + variance]:
        column = table[name]
        assert str(column.type) == "fixed_size_list<element: float>[5]"
        rows = np.stack(column.to_numpy())
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, getattr(items, name))
    assert table.schema.metadata[b"laplacian_metric.source"] == SOURCE.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["index.parquet"]


def test_a_file_is_replaced_whole_or_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items, _ = clusters(20)
    path = tmp_path / "index.parquet"
    export(Index(items), path)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", fail)
    with pytest.raises(OSError, match="the disk is full"):
        export(Index(items[:3]), path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["index.parquet"]
    monkeypatch.undo()
    export(Index(items[:3]), path)
    assert parquet.read_table(path).num_rows == 3
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        export(Index(items), tmp_path / "nowhere" / "index.parquet")


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        export(Index(clusters(3)[0]), tmp_path / "index.parquet")
