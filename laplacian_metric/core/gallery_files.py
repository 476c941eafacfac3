"""Array galleries in folders: vectors that stay mapped, and ids, labels and columns as plain values."""

from __future__ import annotations

import datetime
import decimal
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from laplacian_metric.core import artifact
from laplacian_metric.core.array_gallery import ArrayGallery, Items
from laplacian_metric.core.artifact import ArtifactError, Manifest
from laplacian_metric.core.check import as_column

VECTORS, NORMS, IDS, CODES = "vectors.npy", "norms.npy", "ids.npy", "codes.npy"


class GalleryManifest(Manifest):
    """What the folder of an array gallery says about itself; columns of texts are in it, numbers are in files."""

    FORMAT: ClassVar[str] = "laplacian_metric gallery"
    PAYLOADS: ClassVar[tuple[str, ...]] = (VECTORS, NORMS)
    OPTIONAL: ClassVar[tuple[str, ...]] = (IDS, CODES)

    text_ids: list[str] | None = None
    class_names: list[Any] | None = None
    columns: dict[str, list[Any]] = Field(default={})


def save(gallery: ArrayGallery, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the items of an array gallery into a folder, which is there whole or not at all."""
    items = gallery.items
    payloads: dict[str, Any] = {VECTORS: items.vectors, NORMS: items.norms}
    numbers, text_ids, names = items.ids.dtype.kind == "i", None, None
    if numbers:
        payloads[IDS] = items.ids
    else:
        text_ids = items.ids.tolist()
    if items.labels is not None:
        codes: dict[Any, int] = {}
        payloads[CODES] = np.array([codes.setdefault(label, len(codes)) for label in items.labels.tolist()])
        names = [to_json(label) for label in codes]
    columns = {name: values.tolist() for name, values in items.columns.items()}
    manifest = GalleryManifest(text_ids=text_ids, class_names=names, columns=columns)
    return artifact.save(folder, manifest, payloads, overwrite=overwrite)


def load(folder: str | os.PathLike[str]) -> ArrayGallery:
    """Read what `save` wrote; the vectors stay in their file, of which a search reads a block at a time.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = save(ArrayGallery([[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"]), Path(place) / "gallery")
        ...     load(folder).search([[0.0, 2.0]], k=1).labels.tolist()
        [['dog']]
    """
    with artifact.load(folder, GalleryManifest) as opened:
        manifest = opened.manifest
        vectors = opened.array(VECTORS)
        labels = None
        if manifest.class_names is not None:
            names = as_column([from_json(name) for name in manifest.class_names])
            codes = opened.array(CODES, shape=(len(vectors),), mmap=False)
            if len(codes) and not 0 <= codes.min() <= codes.max() < len(names):
                raise ArtifactError(
                    f"{CODES} in {folder} has entries that are no classes: copy the folder again"
                )
            labels = names[codes]
        ids = (
            opened.array(IDS, mmap=False) if manifest.text_ids is None else as_column(list(manifest.text_ids))
        )
        norms = opened.array(NORMS, shape=(len(vectors),), mmap=False)
    columns: dict[str, NDArray[Any]] = {name: as_column(values) for name, values in manifest.columns.items()}
    return ArrayGallery.of_items(Items(ids, vectors, norms, labels, columns))


def to_json(label: Any) -> Any:
    """Return a label as a value of JSON that keeps its kind.

    Example:
        >>> to_json(("a", 1)), from_json(to_json(("a", 1)))
        ({'tuple': ['a', 1]}, ('a', 1))
    """
    if label is None or isinstance(label, (str, bool, int, float)):
        return label
    if isinstance(label, tuple):
        return {"tuple": [to_json(part) for part in label]}
    if isinstance(label, bytes):
        return {"bytes": label.hex()}
    if isinstance(label, (datetime.datetime, datetime.date)):
        return {type(label).__name__: label.isoformat()}
    if isinstance(label, decimal.Decimal):
        return {"decimal": str(label)}
    raise TypeError(
        f"labels have a {type(label).__name__}, which cannot be saved: use texts, numbers, dates or tuples"
    )


def from_json(value: Any) -> Any:
    """Return the label that `to_json` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(from_json(part) for part in content)
    readers: dict[str, Any] = {
        "bytes": bytes.fromhex,
        "datetime": datetime.datetime.fromisoformat,
        "date": datetime.date.fromisoformat,
        "decimal": decimal.Decimal,
    }
    return readers[kind](content)
