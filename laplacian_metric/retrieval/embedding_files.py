"""Embedded images in files that are read without torch: .npz, .safetensors or .parquet."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core import array_files
from laplacian_metric.core.checked import parsed
from laplacian_metric.core.files import atomic_write
from laplacian_metric.retrieval.items import Items

SUFFIXES = (".npz", ".safetensors", ".parquet")
NOTE = "laplacian_metric.embedding"  # stays as it is: files have it
SOURCE = b"laplacian_metric.source"
ARRAYS = ("mean", "kappa", "uncertainty", "point")
FEATURES = "features"
VECTORS = {"mean", "point", FEATURES}


@dataclass(frozen=True, eq=False)
class Embedded:
    """N images as distributions.

    Attributes:
        items: mean directions, concentrations and uncertainties, with the fingerprint of what made them.
        point: (N, Z) float32, the deterministic embeddings.
        ids: one for each.
        features: (N, H) float32, what goes into the head; None where no index needs them.

    Example:
        >>> import tempfile
        >>> items = Items(np.eye(2), kappa=[10, 20], uncertainty=[0.1, 0.05], variance=None, source="a4f0")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "two.npz"
        ...     Embedded(items, np.eye(2, dtype=np.float32), ("ant", "bee")).write(path)
        ...     Embedded.read(path).ids
        ('ant', 'bee')
    """

    items: Items
    point: NDArray[np.float32]
    ids: tuple[str, ...]
    features: NDArray[np.float32] | None = None

    def by_point(self) -> Items:
        """Return the items with the deterministic embeddings as directions, as an index with `Trust` has them."""
        return replace(self.items, mean=np.asarray(self.point, dtype=np.float32))

    def write(self, path: Path) -> None:
        """Write a file, whole or not at all; what it is follows from its suffix."""
        check_suffix(path)
        arrays: dict[str, Any] = {
            "mean": self.items.mean,
            "kappa": self.items.kappa,
            "uncertainty": self.items.uncertainty,
            "point": np.ascontiguousarray(self.point, dtype=np.float32),
        }
        if self.features is not None:
            arrays[FEATURES] = np.ascontiguousarray(self.features, dtype=np.float32)
        with atomic_write(path) as temporary:
            if path.suffix.lower() == ".npz":
                with temporary.open("wb") as opened:
                    np.savez(opened, ids=np.array(self.ids), source=np.array(self.items.source), **arrays)
            elif path.suffix.lower() == ".safetensors":
                from safetensors.numpy import save

                note = json.dumps({"ids": self.ids, "source": self.items.source})
                temporary.write_bytes(
                    save({name: np.array(one) for name, one in arrays.items()}, metadata={NOTE: note})
                )
            else:
                _write_parquet(temporary, self.ids, self.items.source, arrays)

    @staticmethod
    def read(path: Path) -> Embedded:
        """Read what `write` wrote.

        Raises:
            ArrayFileError: it is damaged or something else.
        """
        check_suffix(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        if path.suffix.lower() == ".parquet":
            arrays, ids, source = _read_parquet(path)
        else:
            arrays, ids, source = _read_arrays(path)
        try:
            items = Items(arrays["mean"], arrays["kappa"], arrays["uncertainty"], None, source)
        except (ValueError, TypeError) as error:
            raise array_files.ArrayFileError(f"{path}: {error}") from error
        if len(ids) != len(items) or arrays["point"].shape != arrays["mean"].shape:
            raise array_files.ArrayFileError(
                f"{path} has {len(ids)} ids, {len(items)} directions and points {arrays['point'].shape}: embed again"
            )
        features = arrays.get(FEATURES)
        if features is not None and (features.ndim != 2 or len(features) != len(items)):
            raise array_files.ArrayFileError(
                f"{path} has features {features.shape} of {len(items)} images: embed again"
            )
        return Embedded(items, arrays["point"], tuple(ids), features)


def check_suffix(path: Path) -> None:
    """Refuse what is no name of such a file."""
    if path.suffix.lower() not in SUFFIXES:
        raise array_files.ArrayFileError(
            f"{path.name} is none of {', '.join(SUFFIXES)}: files of embeddings end with one of these"
        )


def _read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], Sequence[str], str]:
    if path.suffix.lower() == ".safetensors":
        arrays, notes = array_files.read_with_notes(path)
        note = parsed(notes.get(NOTE, "{}"), f"the note of {path}", "embed again", array_files.ArrayFileError)
        ids, source = note.get("ids"), note.get("source")
    else:
        arrays = array_files.read_arrays(path)
        ids = arrays["ids"].tolist() if "ids" in arrays else None
        source = str(arrays["source"]) if "source" in arrays else None
    missing = [name for name in ARRAYS if name not in arrays]
    if missing or not isinstance(ids, list) or not isinstance(source, str):
        raise array_files.ArrayFileError(
            f"{path} was not written by `lam embed`: embed the queries with the model first"
        )
    return arrays, [str(one) for one in ids], source


def _write_parquet(path: Path, ids: Sequence[str], source: str, arrays: dict[str, NDArray[Any]]) -> None:
    arrow, parquet = _arrow()
    columns: dict[str, Any] = {"id": arrow.array(list(ids), type=arrow.string())}
    for name in ("kappa", "uncertainty"):
        columns[name] = arrow.array(arrays[name])
    for name in arrays.keys() & VECTORS:
        values = arrow.array(arrays[name].reshape(-1))
        columns[name] = arrow.FixedSizeListArray.from_arrays(values, arrays[name].shape[1])
    table = arrow.table(columns).replace_schema_metadata({SOURCE: source.encode()})
    parquet.write_table(table, path)


def _read_parquet(path: Path) -> tuple[dict[str, NDArray[Any]], Sequence[str], str]:
    arrow, parquet = _arrow()
    try:
        table = parquet.read_table(path)
        source = (table.schema.metadata or {})[SOURCE].decode()
        arrays = {name: table[name].to_numpy() for name in ("kappa", "uncertainty")}
        for name in VECTORS & set(table.column_names):
            column = table[name].combine_chunks()
            arrays[name] = column.values.to_numpy().reshape(len(column), -1)
        if missing := set(ARRAYS) - set(arrays):
            raise KeyError(*missing)
        return arrays, table["id"].to_pylist(), source
    except (arrow.ArrowException, KeyError, ValueError) as error:
        raise array_files.ArrayFileError(
            f"{path} is damaged, or was not written by `lam embed`: embed the queries with the model first"
        ) from error


def _arrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError('Parquet files need pyarrow: pip install "laplacian-metric[parquet]"') from error
