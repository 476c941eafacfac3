"""What a gallery is: five calls, whatever searches. Numpy only; adapters are loaded when an address asks for them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import as_ids, as_labels, kind_of
from laplacian_metric.core.neighbours import Neighbours

Where = Mapping[str, Any]  # column -> a value, or a list of values any of which is right

LARGEST_NUMBER = 2**53  # up to which whole numbers and floats are the same numbers in every engine
LONGEST_ID, LONGEST_TEXT = 1024, 65_535  # bytes in UTF-8, which every engine takes
COLUMN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")

# The modules that open galleries, by the scheme of the address: each has `open_address(address, dim, fields)`.
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

    Vectors are compared by cosine, whatever metric a collection was made with.
    """

    @property
    def address(self) -> str:
        """What `open_gallery` opens it by again, without credentials."""
        ...

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""
        ...

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
            if kind_of([entry]) != kinds[column]:
                raise ValueError(
                    f"where asks for {column} = {entry!r}, a {kind_of([entry])}, the column holds {kinds[column]}: "
                    "pass values of its kind"
                )
        asked[column] = [check_value(f"where asks for {column} = {entry!r}", entry) for entry in values]
    return asked


def check_value(start: str, value: Any, longest: int = LONGEST_TEXT) -> Any:
    """Return a text, a bool or a number; refuse what not every engine keeps as it is.

    Args:
        start: how the error begins.
        value: which value; the negative zero becomes zero.
        longest: how many bytes texts have at most.

    Example:
        >>> check_value("label", "cat"), check_value("price", -0.0)
        ('cat', 0.0)
    """
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{start}: texts must not hold NUL or half a surrogate pair")
        if len(value.encode()) > longest:
            raise ValueError(f"{start[:80]}: texts have at most {longest:,} bytes")
        return value
    if not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"{start}: numbers are finite and at most 2**53, pass larger ones as texts")
    return abs(value) if value == 0 and isinstance(value, float) else value


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
        if kinds is None and not (isinstance(name, str) and COLUMN_NAME.fullmatch(name)):
            raise ValueError(
                f"columns has the name {name!r}: up to 60 letters, digits and _ are needed, a letter first"
            )
        listed = list(values.tolist() if hasattr(values, "tolist") else values)
        listed = [value.item() if isinstance(value, np.generic) else value for value in listed]
        if len(listed) != num:
            raise ValueError(
                f"columns has {len(listed)} values of {name!r} for {num} items: one for each is needed"
            )
        kind = kind_of(listed)
        if kind == "object":
            raise TypeError(
                f"columns has mixed or missing values of {name!r}: all text, all numbers or all bools"
            )
        listed = [check_value(f"columns has {value!r} in {name!r}", value) for value in listed]
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


class Kinds(NamedTuple):
    """What the items of a gallery have: the kinds of their ids, labels (None without labels) and columns."""

    ids: str
    labels: str | None
    columns: dict[str, str]


class Checked(NamedTuple):
    """What is added to a gallery, checked: ids (N,), labels, columns, and the kinds of them all."""

    ids: NDArray[Any]
    labels: list[Any] | None
    columns: dict[str, list[Any]]
    kinds: Kinds


def check_items(
    ids: Any, labels: Any, columns: Mapping[str, Any] | None, num: int, before: Kinds | None
) -> Checked:
    """Return ids, labels and columns of items that are added, which have to be like those of the items before.

    Args:
        ids: (N,), whole numbers or texts, all different.
        labels: (N,), of any hashable kind; None where items have none.
        columns: name -> values (N,).
        num: N, the number of vectors.
        before: the kinds of the items that are there; None where there are none yet.

    Example:
        >>> check_items([7, 8], ["cat", "dog"], None, 2, None).kinds
        Kinds(ids='number', labels='text', columns={})
    """
    checked = as_ids("ids", ids)
    listed = None if labels is None else as_labels("labels", labels, num)
    if len(checked) != num:
        raise ValueError(f"ids has {len(checked)} entries for {num} vectors: one for each is needed")
    for name, texts, longest in (("ids", checked, LONGEST_ID), ("labels", listed or (), LONGEST_TEXT)):
        for text in texts:
            if isinstance(text, str):
                check_value(f"{name} has {text!r}", text, longest)
    if "" in checked.tolist():
        raise ValueError("ids has an empty text: not every engine takes it")
    given = check_columns(columns, num, None if before is None else before.columns)
    kinds = Kinds(
        kind_of(checked[:1].tolist()),
        None if listed is None else kind_of(listed),
        {name: kind_of(values[:1]) for name, values in given.items()},
    )
    if before is not None and kinds.ids != before.ids:
        raise TypeError(f"ids are of the kind {kinds.ids}, those of the gallery are of the kind {before.ids}")
    if before is not None and (kinds.labels is None) != (before.labels is None):
        raise ValueError("labels are needed where the gallery has them, and none where it has none")
    if before is not None and kinds.labels != before.labels:
        raise TypeError(
            f"labels are of the kind {kinds.labels}, those of the gallery of the kind {before.labels}"
        )
    return Checked(checked, listed, given, kinds)


def check_tenant(
    where: Where | None, columns: Mapping[str, Any] | None, num: int
) -> Mapping[str, Any] | None:
    """Return the columns of items that are added to a gallery of one tenant, with those that ``where`` sets.

    Example:
        >>> check_tenant({"tenant": 7}, {"price": [1, 2]}, 2)
        {'price': [1, 2], 'tenant': [7, 7]}
    """
    if not where:
        return columns
    for name, value in where.items():
        if columns and name in columns:
            raise ValueError(f"columns has {name!r}, which the gallery's own where sets: leave it out")
        if not isinstance(value, (str, bool, int, float, np.generic)):
            raise ValueError(
                f"where has several values of {name!r}: open the gallery with one value to add items"
            )
    return {**(columns or {}), **{name: [value] * num for name, value in where.items()}}
