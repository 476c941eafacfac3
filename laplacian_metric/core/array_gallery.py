"""A gallery of arrays, in memory or mapped, and the one exact search; numpy only."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import Floats, Rows, as_column, as_ids, check, kind_of, norms_of, unit_rows
from laplacian_metric.core.gallery import Fields, Kinds, Sample, Where, check_items, check_tenant, check_where
from laplacian_metric.core.neighbours import Neighbours

BLOCK_ROWS = 1 << 14
COSINES_AT_ONCE = 1 << 24
NEAR_TIES = 8  # further candidates, whose order float32 does not tell from that of the last neighbours
LARGEST_FLOAT32, SMALLEST_FLOAT32 = 1e18, 1e-18  # norms between which float32 has all its digits


@dataclass(frozen=True, eq=False)
class Items:
    """Items that do not change: ids (N,), vectors (N, D) with their norms (N,), labels (N,), and columns (N,)."""

    ids: NDArray[Any]
    vectors: NDArray[Any]
    norms: Floats
    labels: NDArray[Any] | None = None
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def column_kinds(self) -> dict[str, str]:
        """The kind of each column, all of whose values have it."""
        return {name: kind_of(values[:1].tolist()) for name, values in self.columns.items()}

    @property
    def kinds(self) -> Kinds:
        """The kinds of ids, labels and columns."""
        labels = None if self.labels is None else kind_of(self.labels.tolist())
        return Kinds(kind_of(self.ids[:1].tolist()), labels, self.column_kinds)

    def take(self, rows: NDArray[Any]) -> Items:
        """Return some of the items, by number or by a mask."""
        return Items(
            self.ids[rows],
            self.vectors[rows],
            self.norms[rows],
            None if self.labels is None else self.labels[rows],
            {name: values[rows] for name, values in self.columns.items()},
        )

    def followed_by(self, more: Items) -> Items:
        """Return these items and further ones."""
        dtype = np.result_type(self.vectors.dtype, more.vectors.dtype)
        return Items(
            _joined(self.ids, more.ids),
            np.concatenate([self.vectors, more.vectors]).astype(dtype, copy=False),
            np.concatenate([self.norms, more.norms]),
            None if self.labels is None or more.labels is None else _joined(self.labels, more.labels),
            {name: _joined(values, more.columns[name]) for name, values in self.columns.items()},
        )


class ArrayGallery:
    """Items in arrays, searched exactly. An answer sees the items as they were when it began.

    Args:
        vectors: (N, D), of any length; a mapped file stays one. None for an empty gallery.
        labels: (N,), of any hashable kind.
        ids: (N,), whole numbers or texts; by default the numbers from 0 on.
        columns: name -> values (N,), all text, all numbers or all bools.
        dim: D, where there are no vectors yet.

    Example:
        >>> gallery = ArrayGallery([[1.0, 0.0], [0.0, 1.0]], ["cat", "dog"])
        >>> gallery.search([[0.1, 0.9]], k=2).labels.tolist()
        [['dog', 'cat']]
    """

    address = "arrays:"

    def __init__(
        self,
        vectors: Any = None,
        labels: Any = None,
        ids: Any = None,
        columns: Mapping[str, Any] | None = None,
        *,
        dim: int | None = None,
        where: Where | None = None,
        name: str = "vectors",
    ) -> None:
        if vectors is None and dim is None:
            raise ValueError("dim is needed where there are no vectors")
        self.where = dict(where or {})
        self._lock = threading.Lock()
        self._items: Items | None = None
        self._dim = dim
        if vectors is not None:
            rows = check(name, vectors, "N D", **({} if dim is None else {"D": dim}))
            numbers = np.arange(len(rows)) if ids is None else ids
            self._items = _items(name, numbers, rows, labels, columns, None)

    @property
    def dim(self) -> int:
        """The dimension of the vectors."""
        return int(self._dim if self._items is None else self._items.vectors.shape[1])  # type: ignore[arg-type]

    @property
    def items(self) -> Items:
        """The items as they are now; later changes leave them alone."""
        if self._items is None:
            raise ValueError("the gallery is empty: add items first")
        return self._items

    def __len__(self) -> int:
        items = self._items
        return 0 if items is None else int(np.count_nonzero(self._selected(items, None)))

    def search(
        self, vectors: Any, k: int, where: Where | None = None, native: Mapping[str, Any] | None = None
    ) -> Neighbours:
        """Return the nearest items of queries, see `laplacian_metric.core.gallery.Gallery`; there is no ``native``."""
        if native:
            raise ValueError("native is for engines: an array gallery has no options of its own")
        if k < 1:
            raise ValueError(f"k is {k}: at least 1 is needed")
        queries = unit_rows("vectors", check("vectors", vectors, "Q D", D=self.dim))
        items = self.items
        selected = self._selected(items, where)
        k = min(k, int(selected.sum()))
        if k == 0:
            nothing = np.full((len(queries), 1), np.nan)
            return Neighbours(
                np.full((len(queries), 1), -1), np.full((len(queries), 1), np.inf), nothing, None
            )
        rows = nearest_rows(items, queries, k + NEAR_TIES, None if selected.all() else selected)
        labels = None if items.labels is None else items.labels[rows]
        return Neighbours.from_vectors(queries, items.ids[rows], items.vectors[rows], labels).first(k)

    def add(
        self, ids: Any, vectors: Any, labels: Any = None, columns: Mapping[str, Any] | None = None
    ) -> None:
        """Add items, or replace those of the same ids."""
        with self._lock:
            before = self._items
            rows = check("vectors", vectors, "N D", D=self.dim)
            given = check_tenant(self.where, columns, len(rows))
            more = _items("vectors", ids, rows, labels, given, before)
            if before is not None:
                replaced = among(before.ids, more.ids)
                if (replaced & ~self._selected(before, None)).any():
                    raise ValueError(
                        "ids has items which the gallery's own where leaves out: choose other ids"
                    )
                kept = before.take(~replaced)
                more = kept.followed_by(more) if len(kept) else more
            self._items = more

    def remove(self, ids: Any) -> None:
        """Remove items by their ids."""
        gone = as_ids("ids", ids)
        with self._lock:
            items = self.items
            inside = among(gone, items.ids[self._selected(items, None)])
            if not inside.all():
                raise KeyError(f"ids has {gone[~inside][0]!r}: the gallery has no such item")
            kept = items.take(~among(items.ids, gone))
            self._dim = self.dim
            self._items = kept if len(kept) else None

    @staticmethod
    def of_items(items: Items, where: Where | None = None) -> ArrayGallery:
        """Return a gallery of items that were checked already."""
        gallery = ArrayGallery(dim=items.vectors.shape[1], where=where)
        gallery._items = items
        return gallery

    def sample(self, n: int, seed: int = 0) -> Sample:
        """Return at most n items, drawn uniformly without replacement, in the order of the gallery."""
        items = self.items
        rows = np.flatnonzero(self._selected(items, None))
        if n < len(rows):
            rows = np.sort(np.random.default_rng(seed).choice(rows, n, replace=False))
        taken = items if len(rows) == len(items) else items.take(rows)
        return Sample(taken.ids, taken.vectors, taken.labels)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and copied: all but the lock."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def _selected(self, items: Items, where: Where | None) -> NDArray[np.bool_]:
        """Return which items a filter and the gallery's own filter leave."""
        selected = np.ones(len(items), dtype=bool)
        kinds = items.column_kinds
        for asked in (check_where(self.where, kinds), check_where(where, kinds)):
            for name, values in asked.items():
                selected &= among(items.columns[name], as_column(values))
        return selected


def open_address(address: str, dim: int | None, fields: Fields) -> ArrayGallery:
    """Return an empty gallery for the address "arrays:"."""
    if address != ArrayGallery.address:
        raise ValueError(f"address is {address!r}: items in memory are at 'arrays:'")
    return ArrayGallery(dim=dim, where=fields.where)


def nearest_rows(items: Items, queries: Floats, k: int, selected: NDArray[np.bool_] | None) -> Rows:
    """Return the rows (Q, min(k, N)) with the greatest cosines, found a block at a time in float32.

    Args:
        items: what is searched.
        queries: (Q, D), of unit length.
        k: how many.
        selected: (N,), the items that count; None for all.
    """
    number = len(items) if selected is None else int(selected.sum())
    k = min(k, number)
    directions = queries.astype(np.float32)
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    rows = np.zeros((len(queries), k), dtype=np.int64)
    at_once = max(1, COSINES_AT_ONCE // BLOCK_ROWS)
    for start, block, inverse in _blocks(items):
        for first in range(0, len(directions), at_once):
            few = slice(first, first + at_once)
            cosines = _cosines(directions[few], block, inverse)
            if selected is not None:
                cosines[:, ~selected[start : start + len(block)]] = -np.inf
            best[few], rows[few] = _merged(best[few], rows[few], cosines, start)
    return rows


def _blocks(items: Items) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.float32]]]:
    """Yield the vectors in float32 a block at a time, with the first row and the inverse norms."""
    norms = items.norms
    plain = norms.min() > SMALLEST_FLOAT32 and norms.max() < LARGEST_FLOAT32
    for start in range(0, len(items), BLOCK_ROWS):
        block, lengths = items.vectors[start : start + BLOCK_ROWS], norms[start : start + BLOCK_ROWS]
        if plain:
            yield start, np.asarray(block, dtype=np.float32), (1 / lengths).astype(np.float32)
        else:
            unit = np.asarray(block, dtype=np.float64) / lengths[:, None]
            yield start, unit.astype(np.float32), np.ones(len(block), dtype=np.float32)


def _cosines(
    directions: NDArray[np.float32], block: NDArray[np.float32], inverse: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the cosines (Q, B); a matrix product would copy the block for one query."""
    products: NDArray[np.float32] = (
        (block @ directions[0])[None] if len(directions) == 1 else directions @ block.T
    )
    products *= inverse
    return products


def _merged(
    best: NDArray[np.float32], rows: Rows, cosines: NDArray[np.float32], start: int
) -> tuple[NDArray[np.float32], Rows]:
    """Return the greatest of the cosines so far (Q, k) and of a block (Q, B), with their rows."""
    k = best.shape[1]
    columns = np.broadcast_to(np.arange(cosines.shape[1]), cosines.shape)
    if cosines.shape[1] > k:
        columns = np.argpartition(cosines, cosines.shape[1] - k, axis=1)[:, -k:]
        cosines = np.take_along_axis(cosines, columns, axis=1)
    both = np.concatenate([best, cosines], axis=1)
    numbers = np.concatenate([rows, columns + start], axis=1)
    order = np.argpartition(both, both.shape[1] - k, axis=1)[:, -k:]
    return np.take_along_axis(both, order, axis=1), np.take_along_axis(numbers, order, axis=1)


def _items(
    name: str,
    ids: Any,
    rows: NDArray[Any],
    labels: Any,
    columns: Mapping[str, Any] | None,
    before: Items | None,
) -> Items:
    """Return new items, after they were checked beside those that are there."""
    checked = check_items(ids, labels, columns, len(rows), None if before is None else before.kinds)
    return Items(
        checked.ids,
        rows,
        norms_of(name, rows),
        None if checked.labels is None else as_column(checked.labels),
        {column: as_column(values) for column, values in checked.columns.items()},
    )


def _joined(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return two columns as one; as objects where numpy would turn one kind into the other."""
    if first.dtype.kind == second.dtype.kind or {first.dtype.kind, second.dtype.kind} <= set("iuf"):
        return np.concatenate([first, second])
    return np.concatenate([first.astype(object), second.astype(object)])


def among(values: NDArray[Any], some: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are among some others."""
    if values.dtype == object or some.dtype == object:
        members = set(some.tolist())
        return np.array([value in members for value in values.tolist()], dtype=bool)
    return np.isin(values, some)
