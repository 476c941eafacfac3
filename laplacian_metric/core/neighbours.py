"""What a search returned, whoever searched; numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laplacian_metric.core.check import Floats, as_array, as_column

ROUNDING = 1e-3  # engines in float32 may return distances that are this far below 0 or above 2
FARTHEST = 2.0  # 1 - cosine of opposite directions
SMALLEST, LARGEST = 1e-200, 1e200  # squares between which norms have all their digits
ALMOST_EQUAL = 1e-3  # from this distance on 1 - cosine has lost no digits that matter


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The k nearest items of Q queries, in the order of whoever searched.

    A search that returned fewer items to one query has the distance infinity in the places that are left, which are
    the last.

    Attributes:
        ids: (Q, k), what the gallery calls its items.
        distances: (Q, k), float64, 1 - cosine, from 0 to 2.
        labels: (Q, k), of the items; None where they have none.
        vectors: (Q, k, D), of the items; None where the search did not return them.

    Example:
        >>> neighbours = Neighbours([[7, 3]], [[0.1, 0.4]], [["cat", "dog"]])
        >>> len(neighbours), neighbours.k, neighbours.ids.tolist(), neighbours.labels.tolist()
        (1, 2, [[7, 3]], [['cat', 'dog']])
    """

    ids: NDArray[Any]
    distances: Floats
    labels: NDArray[Any] | None = None
    vectors: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        distances = np.array(as_array("distances", self.distances), dtype=np.float64)
        if distances.ndim != 2 or distances.shape[1] == 0:
            raise ValueError(f"distances has shape {distances.shape}: (queries, neighbours) is needed")
        if np.isnan(distances).any():
            raise ValueError("distances has NaN: mark neighbours that were not found with infinity")
        found = np.isfinite(distances)
        if (~found[:, :-1] & found[:, 1:]).any():
            raise ValueError(
                "distances has infinity before a neighbour that was found: such places come last"
            )
        if found.any() and (
            distances[found].min() < -ROUNDING or distances[found].max() > FARTHEST + ROUNDING
        ):
            raise ValueError(
                "distances has values outside 0 to 2: pass 1 - cosine, and not similarities or L2"
            )
        np.clip(distances, 0, FARTHEST, out=distances, where=found)
        object.__setattr__(self, "distances", distances)
        for name in ("ids", "labels"):
            values = getattr(self, name)
            if values is None:
                continue
            table = _table(values)
            if table.shape[:2] != distances.shape:
                raise ValueError(
                    f"{name} has shape {table.shape}, distances has {distances.shape}: they belong together"
                )
            object.__setattr__(self, name, table)
        if self.vectors is not None:
            vectors = as_array("vectors", self.vectors)
            if vectors.ndim != 3 or vectors.shape[:2] != distances.shape:
                raise ValueError(f"vectors has shape {vectors.shape}: {(*distances.shape, 'D')} is needed")
            object.__setattr__(self, "vectors", vectors)

    @staticmethod
    def from_vectors(
        queries: Floats, ids: ArrayLike, vectors: NDArray[Any], labels: ArrayLike | None = None
    ) -> Neighbours:
        """Return neighbours in the order of their exact distances, computed in float64 from the vectors.

        Args:
            queries: (Q, D), of unit length.
            ids: (Q, k).
            vectors: (Q, k, D), of any length; rows of NaN for neighbours that were not found.
            labels: (Q, k).

        Example:
            >>> queries = np.array([[1.0, 0.0]])
            >>> found = Neighbours.from_vectors(queries, [[4, 9]], np.array([[[0.0, 1.0], [3.0, 0.0]]]))
            >>> found.ids.tolist(), found.distances.tolist()
            ([[9, 4]], [[0.0, 1.0]])
        """
        distances = distances_to(queries, vectors)
        table = _table(ids)
        order = _order(distances, table)
        return Neighbours(
            np.take_along_axis(table, order, axis=1),
            np.take_along_axis(distances, order, axis=1),
            None if labels is None else np.take_along_axis(_table(labels), order, axis=1),
            vectors[np.arange(len(order))[:, None], order],
        )

    def __len__(self) -> int:
        return len(self.distances)

    @property
    def k(self) -> int:
        """The number of neighbours of each query."""
        return int(self.distances.shape[1])

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of neighbours that were found for each query, (Q,)."""
        counts: NDArray[np.int64] = np.isfinite(self.distances).sum(axis=1)
        return counts

    def __getitem__(self, queries: slice | NDArray[Any]) -> Neighbours:
        """Return the neighbours of some of the queries."""
        return self._taken(lambda table: table[queries])

    def first(self, k: int) -> Neighbours:
        """Return the first k neighbours of each query.

        Example:
            >>> Neighbours([[7, 3]], [[0.1, 0.4]]).first(1).ids.tolist()
            [[7]]
        """
        return self._taken(lambda table: table[:, :k])

    def padded(self, k: int) -> Neighbours:
        """Return k neighbours of each query, of which those beyond the last were not found."""
        more = ((0, 0), (0, k - self.k))
        ids, labels = np.pad(self.ids, more, mode="edge"), self.labels
        labels = None if labels is None else np.pad(labels, more, mode="edge")
        return Neighbours(ids, np.pad(self.distances, more, constant_values=np.inf), labels)

    def without(self, ids: NDArray[Any]) -> Neighbours:
        """Return the neighbours (Q, k - 1) without one id for each query, or without the last where it is not there.

        Example:
            >>> Neighbours([[7, 3], [5, 6]], [[0.1, 0.4], [0, 1]]).without(np.array([3, 9])).ids.tolist()
            [[7], [5]]
        """
        places = self.ids == as_column(list(ids))[:, None]
        places[~places.any(axis=1), -1] = True
        drop = places.argmax(axis=1)
        columns = np.arange(self.k - 1)[None] + (np.arange(self.k - 1)[None] >= drop[:, None])
        return self._taken(lambda table: table[np.arange(len(self))[:, None], columns])

    def _taken(self, take: Any) -> Neighbours:
        """Return neighbours whose tables are taken from these, which were checked already."""
        taken = object.__new__(Neighbours)
        for name in ("ids", "distances", "labels", "vectors"):
            table = getattr(self, name)
            object.__setattr__(taken, name, None if table is None else take(table))
        return taken


def distances_to(queries: Floats, vectors: NDArray[Any]) -> Floats:
    """Return 1 - cosine (Q, k) of queries (Q, D) of unit length to vectors (Q, k, D), in float64; infinity for NaN."""
    squares = np.einsum("qkd,qkd->qk", vectors, vectors, dtype=np.float64)
    if not ((squares > SMALLEST) & (squares < LARGEST)).all():
        with np.errstate(invalid="ignore"):  # rows of NaN, and rows whose squares would leave float64
            vectors = np.asarray(vectors, dtype=np.float64)
            vectors = vectors / np.abs(vectors).max(axis=2, keepdims=True)
        squares = np.einsum("qkd,qkd->qk", vectors, vectors)
    norms = np.sqrt(squares)
    distances: Floats = 1 - np.einsum("qkd,qd->qk", vectors, queries, dtype=np.float64) / norms
    near = distances < ALMOST_EQUAL
    if near.any():  # where a difference of nearly equal numbers would lose digits
        query, place = np.nonzero(near)
        apart = vectors[query, place] / norms[query, place, None] - queries[query]
        distances[query, place] = np.einsum("nd,nd->n", apart, apart) / 2
    distances = np.clip(distances, 0, FARTHEST)
    return np.where(np.isnan(distances), np.inf, distances)


def _order(distances: Floats, ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return the order of ascending distances; of those that are equal to 12 digits the smaller id comes first."""
    keys = ids if ids.dtype.kind in "iu" else np.argsort(np.argsort(ids.astype(str), axis=1), axis=1)
    return np.lexsort((keys, np.round(distances, 12)), axis=1)


def _table(values: Any) -> NDArray[Any]:
    """Return rows of ids or labels as a matrix; tuples stay labels."""
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "detach"):
        return as_array("labels", values)
    rows = [list(row) for row in values]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(
            "ids or labels have rows of different lengths: one entry for each distance is needed"
        )
    column = as_column([value for row in rows for value in row])
    return column.reshape(len(rows), -1 if rows else 0)
