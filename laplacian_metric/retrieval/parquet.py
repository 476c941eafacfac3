"""An index as a Parquet file, for whoever reads tables."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.files import atomic_write
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.retriever import Retriever

SOURCE = b"laplacian_metric.source"


def export(index: Retriever, path: str | os.PathLike[str]) -> None:
    """Write id, kappa, uncertainty, mean and, where there is one, variance of every item, in the order of the rows.

    ``mean`` and ``variance`` are lists of fixed size, and the table's metadata has the source as
    "laplacian_metric.source". The file is there whole or not at all; rows are written a few at a time.

    Args:
        index: an `Index` or `Shards`.
        path: of the file; one that is there is replaced.
    """
    arrow, parquet = _module("pyarrow"), _module("pyarrow.parquet")
    gallery = index.state.gallery
    variance = all(part.variance is not None for part in gallery.parts)
    fields = [
        ("id", arrow.string() if gallery.ids.dtype.kind == "U" else arrow.int64()),
        ("kappa", arrow.float32()),
        ("uncertainty", arrow.float64()),
        *((name, arrow.list_(arrow.float32(), gallery.dim)) for name in ("mean", "variance")[: 1 + variance]),
    ]
    schema = arrow.schema([arrow.field(name, kind, nullable=False) for name, kind in fields])
    schema = schema.with_metadata({SOURCE: gallery.source.encode()})
    with atomic_write(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for start, block in gallery.blocks():
            ids = gallery.ids[start : start + len(block)]
            writer.write_table(arrow.table(_columns(arrow, ids, block, variance), schema=schema))


def _columns(arrow: Any, ids: NDArray[Any], block: Items, variance: bool) -> dict[str, Any]:
    """Of some rows; numbers are not copied."""
    columns = {
        "id": arrow.array(ids.tolist() if ids.dtype.kind == "U" else ids),
        "kappa": arrow.array(block.kappa),
        "uncertainty": arrow.array(block.uncertainty),
        "mean": _lists(arrow, block.mean),
    }
    if variance and block.variance is not None:
        columns["variance"] = _lists(arrow, block.variance)
    return columns


def _lists(arrow: Any, values: NDArray[np.float32]) -> Any:
    return arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), values.shape[1])


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("Parquet files are written by pyarrow: pip install pyarrow") from error
