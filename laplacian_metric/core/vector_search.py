"""Exact nearest neighbours by cosine in numpy, a block at a time, so that mapped vectors stay in their file.

`laplacian_metric.core.search` does this for tensors on any device; this module answers without torch. Where classes are
not asked for and there are many pairs, FAISS is used if it is installed; distances are recomputed either way.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

BLOCK_ROWS = 8192
MOST_BLOCK_ROWS = 1 << 16
MOST_ORDERS = 3  # of all vectors by class that are kept
COSINES_AT_ONCE = 1 << 22
PAIRS_FOR_FAISS = 1 << 24  # from so many pairs on FAISS is worth its import
GATHERED_AT_ONCE = 1 << 24  # numbers of gathered vectors that are in memory together
FARTHEST = 2.0  # 1 - cosine of opposite directions


def as_rows(name: str, rows: Any) -> NDArray[Any]:
    """Return a matrix (N, D) of floats as numpy has it: an array, mapped or not, or a torch tensor on any device.

    Float16, float32 and float64 stay as they are; nothing is copied.

    Example:
        >>> as_rows("h", [[1.0, 2.0]]).shape
        (1, 2)
    """
    if hasattr(rows, "detach"):
        rows = rows.detach().cpu()
        rows = (rows.float() if "bfloat16" in str(rows.dtype) else rows).numpy()
    array = rows if isinstance(rows, np.ndarray) else np.asarray(rows)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}: rows of features (N, D) are needed, at least one")
    if array.dtype.kind in "iub":
        return array.astype(np.float32)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} has dtype {array.dtype}: numbers are needed")
    return array


def norms_of(name: str, rows: NDArray[Any]) -> Floats:
    """Return the norms (N,); refuse rows that are not finite or that are zero, which have no direction."""
    norms = np.empty(len(rows))
    for start in range(0, len(rows), BLOCK_ROWS):
        block = np.asarray(rows[start : start + BLOCK_ROWS], dtype=np.float64)
        norms[start : start + len(block)] = np.sqrt(np.einsum("nd,nd->n", block, block))
    wrong = np.flatnonzero(~np.isfinite(norms))
    if len(wrong):
        raise ValueError(
            f"{name} has NaN or infinity in {len(wrong)} of {len(norms)} rows, the first is row {wrong[0]}: leave "
            "them out, or repair what computed them"
        )
    wrong = np.flatnonzero(norms == 0)
    if len(wrong):
        raise ValueError(
            f"{name} is zero in {len(wrong)} of {len(norms)} rows, the first is row {wrong[0]}: a vector without a "
            "direction has no nearest item; leave it out"
        )
    return norms


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors (N, D) of any length as they were given, and their norms (N,); compared by 1 - cosine."""

    rows: NDArray[Any]
    norms: Floats

    @staticmethod
    def of(name: str, rows: Any) -> Vectors:
        """Check rows; errors call them by ``name``.

        Example:
            >>> len(Vectors.of("h", [[3.0, 4.0]])), Vectors.of("h", [[3.0, 4.0]]).norms.tolist()
            (1, [5.0])
        """
        array = as_rows(name, rows)
        return Vectors(array, norms_of(name, array))

    def __len__(self) -> int:
        return len(self.rows)

    def unit(self, rows: Any) -> Floats:
        """Return some of the directions, (..., D), in float64."""
        taken = np.asarray(self.rows[rows], dtype=np.float64)
        directions: Floats = taken / self.norms[rows][..., None]
        return directions

    def blocks(self, at_once: int) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.float32]]]:
        """Yield all rows in float32 a block at a time, with its first row and the inverse norms."""
        for start in range(0, len(self), at_once):
            some = slice(start, start + at_once)
            yield (
                start,
                np.asarray(self.rows[some], dtype=np.float32),
                (1 / self.norms[some]).astype(np.float32),
            )


@dataclass(frozen=True, eq=False)
class Classes:
    """The number of the class of each vector, (N,), and the orders by class that were computed so far."""

    codes: Rows
    orders: dict[tuple[int, int], _Segments] = field(default_factory=dict)

    def segments(self, start: int, end: int) -> _Segments:
        """Return a block in the order of its classes."""
        if (start, end) not in self.orders:
            if len(self.orders) * (end - start) > MOST_ORDERS * len(self.codes):
                self.orders.clear()  # blocks of many sizes were asked for
            codes, numbers, order = self.codes[start:end], np.arange(start, end), None
            if (np.diff(codes) < 0).any():
                order = np.argsort(codes, kind="stable")
                codes, numbers = codes[order], numbers[order]
            classes, starts = np.unique(codes, return_index=True)
            self.orders[start, end] = _Segments(order, numbers, starts, classes)
        return self.orders[start, end]


@dataclass(frozen=True, eq=False)
class Nearest:
    """What a search found for Q queries.

    Attributes:
        rows: (Q, k), the nearest first; of items at the same distance the first row first.
        distances: (Q, k), 1 - cosine, recomputed in float64 from differences: right to the last digits even near 0.
        same_row, same: (Q,), the nearest item of the class asked for and its distance.
        other_row, other: (Q,), the nearest item of another class; -1 and 2 where there is none.
    """

    rows: Rows
    distances: Floats
    same_row: Rows
    same: Floats
    other_row: Rows
    other: Floats


def search(
    vectors: Vectors,
    queries: Vectors,
    k: int,
    *,
    own: Rows | None = None,
    codes: Classes | None = None,
    classes: Rows | None = None,
) -> Nearest:
    """Find the k nearest vectors of every query and, in the same pass, the nearest of its class and of another.

    Args:
        vectors: what is searched, N of them.
        queries: Q of them.
        k: how many; at most N, or N - 1 with ``own``.
        own: (Q,), the row of each query among the vectors, which is left out, or -1.
        codes: the class of each vector; without them there is neither same nor other.
        classes: (Q,), the class asked for; by default that of the nearest item.
    """
    directions = queries.unit(slice(None)).astype(np.float32)
    k = min(k, len(vectors) - (own is not None))
    if codes is None:
        none, far = np.full(len(queries), -1), np.full(len(queries), FARTHEST)
        nearest = _by_faiss(vectors, directions, k, own)
        if nearest is None:
            nearest, _ = _scan(vectors, directions, k, own, None, None)
        return Nearest(*refined(vectors, queries, nearest), none, far, none, far)
    nearest, pair = _scan(vectors, directions, k, own, codes, classes)
    rows, distances = refined(vectors, queries, nearest)
    same_row, other_row = pair.rows_for(rows[:, 0] if classes is None and k else None, codes)
    same, other = (distance_to(vectors, queries, row) for row in (same_row, other_row))
    return Nearest(rows, distances, same_row, same, other_row, other)


def _scan(
    vectors: Vectors,
    directions: NDArray[np.float32],
    k: int,
    own: Rows | None,
    codes: Classes | None,
    classes: Rows | None,
) -> tuple[Rows, _Pair]:
    """Look at every pair of a query and a vector once; return the rows of the nearest (Q, k) and the pairs by class."""
    num = len(directions)
    best = _Best(np.full((num, k), -np.inf, np.float32), np.full((num, k), -1))
    rows = np.full((num, 2), -1)
    pair = _Pair(classes, np.full((num, 2), -np.inf, np.float32), rows, rows.copy())
    at_once = max(MOST_BLOCK_ROWS // 64, min(MOST_BLOCK_ROWS, COSINES_AT_ONCE // num))
    at_once = max(1, min(at_once, GATHERED_AT_ONCE // vectors.rows.shape[1]))
    queries_at_once = max(1, COSINES_AT_ONCE // at_once)
    for start, block, inverse in vectors.blocks(at_once):
        segments = None if codes is None else codes.segments(start, start + len(block))
        if segments is not None and segments.order is not None and num >= block.shape[1]:
            block = block[segments.order]  # cheaper than to sort the cosines of so many queries
        for first in range(0, num, queries_at_once):
            some = slice(first, first + queries_at_once)
            few = directions[some]
            # A matrix product would copy the block for one query.
            cosines = (block @ few[0])[None] if len(few) == 1 else few @ block.T
            if segments is not None and segments.order is not None:
                if num < block.shape[1]:
                    cosines = cosines[:, segments.order]
                cosines *= inverse[segments.order]
            else:
                cosines *= inverse
            numbers = np.arange(start, start + len(block)) if segments is None else segments.numbers
            if own is not None:
                inside = np.flatnonzero((own[some] >= start) & (own[some] < start + len(block)))
                column = own[some][inside] - start
                if segments is not None and segments.order is not None:
                    column = segments.order.argsort()[column]
                cosines[inside, column] = -np.inf
            best.add(some, cosines, numbers)
            if segments is not None:
                pair.add(some, cosines, segments)
    return best.rows, pair


def _by_faiss(vectors: Vectors, directions: NDArray[np.float32], k: int, own: Rows | None) -> Rows | None:
    """Return the rows of the nearest (Q, k) as FAISS finds them; None where there is little to do, or no FAISS."""
    if len(directions) * len(vectors) < PAIRS_FOR_FAISS or k == 0:
        return None
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        return None
    more = k + (own is not None)
    best, rows = np.full((len(directions), more), -np.inf, np.float32), np.full((len(directions), more), -1)
    for start, block, inverse in vectors.blocks(max(1, GATHERED_AT_ONCE // vectors.rows.shape[1])):
        block = block * inverse[:, None]
        cosines, item_rows = faiss.knn(
            directions, block, min(more, len(block)), metric=faiss.METRIC_INNER_PRODUCT
        )
        both, numbers = (
            np.concatenate([best, cosines], axis=1),
            np.concatenate([rows, item_rows + start], axis=1),
        )
        order = np.argsort(-both, axis=1, kind="stable")[:, :more]
        best, rows = np.take_along_axis(both, order, axis=1), np.take_along_axis(numbers, order, axis=1)
    if own is None:
        return rows
    # Each without itself; of those that did not find themselves, as among equal rows, without the last.
    drop = rows == own[:, None]
    drop[~drop.any(axis=1), -1] = True
    kept: Rows = rows[~drop].reshape(len(rows), k)
    return kept


def refined(vectors: Vectors, queries: Vectors, rows: Rows) -> tuple[Rows, Floats]:
    """Return rows (Q, k) in the order of their exact distances |a - b|^2/2 to the query, and these."""
    distances = np.empty(rows.shape)
    at_once = max(1, GATHERED_AT_ONCE // max(1, rows.shape[1] * vectors.rows.shape[1]))
    for start in range(0, len(rows), at_once):
        some = slice(start, start + at_once)
        difference = vectors.unit(rows[some])
        difference -= queries.unit(some)[:, None]
        distances[some] = np.einsum("qkd,qkd->qk", difference, difference) / 2
    order = np.lexsort((rows, distances), axis=1)
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(distances, order, axis=1)


def distance_to(vectors: Vectors, queries: Vectors, rows: Rows) -> Floats:
    """Return the exact distance of each query to one row (Q,), 2 where the row is -1."""
    distances = np.full(len(rows), FARTHEST)
    some = np.flatnonzero(rows >= 0)
    for few in np.array_split(some, -(-len(some) // BLOCK_ROWS) or 1):
        difference = vectors.unit(rows[few]) - queries.unit(few)
        distances[few] = np.einsum("qd,qd->q", difference, difference) / 2
    return distances


@dataclass(eq=False)
class _Best:
    """The k greatest cosines so far, falling, and their rows."""

    cosines: NDArray[np.float32]
    rows: Rows

    def add(self, some: slice, cosines: NDArray[np.float32], numbers: Rows) -> None:
        """Take notice of more cosines (Q, B), of the rows with these numbers (B,)."""
        best, rows = self.cosines[some], self.rows[some]
        k = best.shape[1]
        if k == 0:
            return
        if rows[0, -1] < 0 and cosines.shape[1] > k:
            # Nothing to compare with yet: all but the greatest of this block are out.
            column = np.argpartition(-cosines, k - 1, axis=1)[:, :k].ravel()
            query = np.repeat(np.arange(len(cosines)), k)
        else:
            query, column = np.divmod(np.flatnonzero(cosines > best[:, -1:]), cosines.shape[1])
        if not len(query):
            return
        counts = np.bincount(query, minlength=len(best))
        place = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
        padding = ((0, 0), (0, int(counts.max())))
        values = np.pad(best, padding, constant_values=-np.inf)
        candidates = np.pad(rows, padding, constant_values=-1)
        values[query, k + place], candidates[query, k + place] = cosines[query, column], numbers[column]
        order = np.argsort(-values, axis=1, kind="stable")[:, :k]
        self.cosines[some] = np.take_along_axis(values, order, axis=1)
        self.rows[some] = np.take_along_axis(candidates, order, axis=1)


@dataclass(frozen=True, eq=False)
class _Segments:
    """A block in the order of its classes.

    Attributes:
        order: (B,), the order of its rows, or None where they are in order.
        numbers: (B,), the rows of all vectors in this order.
        starts: (S,), where each class begins.
        classes: (S,), ascending.
    """

    order: Rows | None
    numbers: Rows
    starts: Rows
    classes: Rows

    def row_of_greatest(self, cosines: NDArray[np.float32], segment: int) -> int:
        """Return the number of the row with the greatest of one query's cosines (B,) in a segment."""
        begin = self.starts[segment]
        end = self.starts[segment + 1] if segment + 1 < len(self.starts) else len(cosines)
        return int(self.numbers[begin + cosines[begin:end].argmax()])


@dataclass(eq=False)
class _Pair:
    """The best item of the class asked for and the best of any other class so far, (Q, 2).

    Where no class is asked for, the first is the best item of all. Both together are enough to go on: whichever class
    the best item will turn out to have, the best of another class is one of them.
    """

    wanted: Rows | None
    cosines: NDArray[np.float32]
    rows: Rows
    classes: Rows

    def add(self, some: slice, cosines: NDArray[np.float32], segments: _Segments) -> None:
        """Take notice of more cosines (Q, B), which are in the order of the segments."""
        every = np.arange(len(cosines))
        greatest = np.maximum.reduceat(cosines, segments.starts, axis=1)
        wanted = segments.classes[greatest.argmax(axis=1)] if self.wanted is None else self.wanted[some]
        place = np.minimum(np.searchsorted(segments.classes, wanted), len(segments.classes) - 1)
        same = np.where(segments.classes[place] == wanted, greatest[every, place], -np.inf)
        greatest[every[~np.isneginf(same)], place[~np.isneginf(same)]] = -np.inf
        elsewhere = greatest.argmax(axis=1)
        other = greatest[every, elsewhere]
        segment = np.stack([place, elsewhere], axis=1)
        values = np.concatenate([self.cosines[some], np.stack([same, other], axis=1)], axis=1)
        classes = np.concatenate([self.classes[some], segments.classes[segment]], axis=1)
        rows = self.rows[some].copy()
        if self.wanted is None:
            wanted = classes[every, values.argmax(axis=1)]
        for column, kind in enumerate((classes == wanted[:, None], classes != wanted[:, None])):
            candidates = np.where(kind, values, -np.inf)
            best = candidates.argmax(axis=1)
            value = candidates[every, best]
            self.cosines[some, column] = value
            self.classes[some, column] = np.where(np.isneginf(value), -1, classes[every, best])
            row = np.where(np.isneginf(value), -1, rows[every, np.minimum(best, 1)])
            for query in np.flatnonzero((best >= 2) & ~np.isneginf(value)):
                row[query] = segments.row_of_greatest(cosines[query], segment[query, best[query] - 2])
            self.rows[some, column] = row

    def rows_for(self, nearest: Rows | None, codes: Classes) -> tuple[Rows, Rows]:
        """Return the rows of both; rounding may have put another class first than the exact distances do."""
        if nearest is None:
            return self.rows[:, 0], self.rows[:, 1]
        agrees = self.classes[:, 0] == codes.codes[nearest]
        return nearest, np.where(agrees, self.rows[:, 1], self.rows[:, 0])
