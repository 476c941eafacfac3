"""What a gallery is: five calls, whatever searches. Numpy only; adapters are loaded when an address asks for them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import kind_of
from laplacian_metric.core.neighbours import Neighbours

Where = Mapping[str, Any]  # column -> a value, or a list of values any of which is right

# The modules that open galleries, by the scheme of the address: each has `open(address, dim, fields) -> Gallery`.
ADAPTERS = {
    "arrays": "laplacian_metric.core.array_gallery",
    "faiss": "laplacian_metric.galleries.faiss",
    "postgresql": "laplacian_metric.galleries.pgvector",
    "postgres": "laplacian_metric.galleries.pgvector",
    "qdrant": "laplacian_metric.galleries.qdrant",
    "milvus": "laplacian_metric.galleries.milvus",
    "lancedb": "laplacian_metric.galleries.lancedb",
    "chroma": "laplacian_metric.galleries.chroma",
}


class GalleryError(RuntimeError):
    """A gallery cannot be reached, or cannot do what was asked; nothing was changed, or the call can be repeated."""


class Sample(NamedTuple):
    """Some items of a gallery: ids (n,), vectors (n, D) and labels (n,), or None where the items have none."""

    ids: NDArray[Any]
    vectors: NDArray[Any]
    labels: NDArray[Any] | None


@dataclass(frozen=True)
class Fields:
    """How a collection calls what a gallery needs: its own name, and the fields of ids, labels and vectors.

    ``where`` restricts the gallery to some of the items, such as those of one tenant.
    """

    name: str = "items"
    id: str = "id"
    label: str = "label"
    vector: str = "vector"
    metric: str = "cosine"
    where: Where | None = None


@runtime_checkable
class Gallery(Protocol):
    """Items with ids, vectors of one space, and, where they are known, labels and further columns.

    ``address`` is what `open_gallery` opens it by again. Vectors are compared by cosine.
    """

    address: str
    dim: int

    def search(
        self, vectors: Any, k: int, where: Where | None = None, native: Mapping[str, Any] | None = None
    ) -> Neighbours:
        """Return the min(k, number of items) nearest items of queries (Q, D), with their vectors.

        ``where`` means the same in every gallery; ``native`` is passed on to the engine as it is.
        """
        ...

    def add(
        self, ids: Any, vectors: Any, labels: Any = None, columns: Mapping[str, Any] | None = None
    ) -> None:
        """Add items, or replace those of the same ids, so that a call that failed can be repeated."""
        ...

    def remove(self, ids: Any) -> None:
        """Remove items by their ids; all of them have to be there."""
        ...

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def sample(self, n: int, seed: int = 0) -> Sample:
        """Return at most n items, drawn uniformly without replacement."""
        ...


def open_gallery(
    address: str,
    dim: int | None = None,
    name: str = "items",
    id: str = "id",
    label: str = "label",
    vector: str = "vector",
    metric: str = "cosine",
    where: Where | None = None,
) -> Gallery:
    """Return the gallery at an address; a collection that somebody else filled is adopted by naming its fields.

    Args:
        address: "arrays:", "faiss:Flat", "faiss:HNSW32", "postgresql://...", "qdrant:...", "milvus:...", "lancedb:..."
            or "chroma:...".
        dim: of the vectors; needed where the collection is a new one.
        name: of the collection or table.
        id: the field of the items' ids.
        label: the field of their labels.
        vector: the field of their vectors.
        metric: of the collection, "cosine", "l2" or "dot"; distances are 1 - cosine with each.
        where: only these items, such as {"tenant": 7}; items that are added get these columns.

    Example:
        >>> gallery = open_gallery("arrays:", dim=2)
        >>> gallery.add([7, 8], [[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"])
        >>> gallery.search([[0.9, 0.1]], k=1).labels.tolist()
        [['cat']]
    """
    scheme = address.partition(":")[0]
    if ":" not in address or scheme not in ADAPTERS:
        raise ValueError(
            f"address is {address!r}: it begins with one of {', '.join(f'{s}:' for s in ADAPTERS)}"
        )
    module = importlib.import_module(ADAPTERS[scheme])
    gallery: Gallery = module.open_address(address, dim, Fields(name, id, label, vector, metric, where))
    return gallery


def check_where(where: Where | None, kinds: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return a filter with a list of values for each column; refuse what the galleries would understand differently.

    A value has to be of the kind of its column: text, a bool, or a number. Whole numbers and floats are one kind, so
    that 20 and 20.0 are the same value.

    Args:
        where: column -> a value or a list of values; None for no filter.
        kinds: column -> "text", "bool" or "number".

    Example:
        >>> check_where({"tenant": 7}, {"tenant": "number"})
        {'tenant': [7]}
        >>> check_where({"tenant": True}, {"tenant": "number"})
        Traceback (most recent call last):
        ...
        ValueError: where asks for tenant = True, a bool, the column holds number: pass values of its kind
    """
    if where is None:
        return {}
    if not isinstance(where, Mapping):
        raise TypeError(f"where is a {type(where).__name__}: a mapping of columns to values is needed")
    asked = {}
    for column, value in where.items():
        if column not in kinds:
            raise ValueError(
                f"where asks for the column {column!r}: there are {', '.join(kinds) or 'no columns'}"
            )
        values = list(value) if isinstance(value, (list, tuple, set, frozenset, np.ndarray)) else [value]
        values = [entry.item() if isinstance(entry, np.generic) else entry for entry in values]
        for entry in values:
            if kind_of([entry]) != kinds[column] or entry != entry:
                raise ValueError(
                    f"where asks for {column} = {entry!r}, a {kind_of([entry])}, the column holds {kinds[column]}: "
                    "pass values of its kind"
                )
            if isinstance(entry, str) and "\0" in entry:
                raise ValueError(f"where asks for {column} = {entry!r}: texts must not hold NUL")
        asked[column] = values
    return asked


def check_columns(
    columns: Mapping[str, Any] | None, num: int, kinds: Mapping[str, str] | None
) -> dict[str, list[Any]]:
    """Return further columns of items that are added, each with one value for each item, all of one kind.

    Args:
        columns: name -> values (N,).
        num: the number of items.
        kinds: column -> kind of the items that are there; None where there are none yet.

    Example:
        >>> check_columns({"tenant": [7, 8]}, 2, None)
        {'tenant': [7, 8]}
    """
    checked = {}
    for name, values in (columns or {}).items():
        listed = list(values.tolist() if hasattr(values, "tolist") else values)
        if len(listed) != num:
            raise ValueError(
                f"columns has {len(listed)} values of {name!r} for {num} items: one for each is needed"
            )
        kind = kind_of(listed) if listed else (kinds or {}).get(name, "text")
        if kind == "object" or any(value != value for value in listed):
            raise TypeError(
                f"columns has mixed or missing values of {name!r}: all text, all numbers or all bools"
            )
        if any(isinstance(value, str) and "\0" in value for value in listed):
            raise ValueError(f"columns has NUL in {name!r}: texts must not hold it")
        if kinds is not None and kinds.get(name, kind) != kind:
            raise TypeError(
                f"columns has {kind} values of {name!r}, the items that are there have {kinds[name]}"
            )
        checked[name] = listed
    if kinds is not None and set(checked) != set(kinds):
        raise ValueError(
            f"columns has {sorted(checked)}, the items that are there have {sorted(kinds)}: pass the same"
        )
    return checked
