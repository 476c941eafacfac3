"""Exact nearest neighbours by cosine in numpy, a block at a time, so that mapped vectors stay in their file.

`laplacian_metric.core.search` does this for tensors on any device; this module answers without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

BLOCK_ROWS = 8192
COSINES_AT_ONCE = 1 << 23
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

    def blocks(self, at_once: int = BLOCK_ROWS) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield all directions in float32, a block at a time, each with its first row."""
        for start in range(0, len(self), at_once):
            block = np.asarray(self.rows[start : start + at_once], dtype=np.float32)
            inverse = (1 / self.norms[start : start + at_once]).astype(np.float32)
            yield start, block * inverse[:, None]


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
    codes: Rows | None = None,
    classes: Rows | None = None,
) -> Nearest:
    """Find the k nearest vectors of every query and, in the same pass, the nearest of its class and of another.

    Args:
        vectors: what is searched, N of them.
        queries: Q of them.
        k: how many; at most N, or N - 1 with ``own``.
        own: (Q,), the row of each query among the vectors, which is left out, or -1.
        codes: (N,), the class of each vector; without it there is neither same nor other.
        classes: (Q,), the class asked for; by default that of the nearest item.
    """
    directions = queries.unit(slice(None)).astype(np.float32)
    best = _Best.empty(len(queries), min(k, len(vectors) - (own is not None)))
    pair = None if codes is None else _Pair.empty(len(queries), classes)
    at_once = max(256, min(BLOCK_ROWS, COSINES_AT_ONCE // max(len(queries), 1)))
    queries_at_once = max(1, COSINES_AT_ONCE // at_once)
    for start, block in vectors.blocks(at_once):
        for first in range(0, len(queries), queries_at_once):
            some = slice(first, first + queries_at_once)
            cosines = directions[some] @ block.T
            if own is not None:
                inside = np.flatnonzero((own[some] >= start) & (own[some] < start + len(block)))
                cosines[inside, own[some][inside] - start] = -np.inf
            best.add(some, cosines, start)
            if pair is not None and codes is not None:
                pair.add(some, cosines, codes[start : start + len(block)], start)
    rows, distances = refined(vectors, queries, best.rows)
    if pair is None:
        none, far = np.full(len(queries), -1), np.full(len(queries), FARTHEST)
        return Nearest(rows, distances, none, far, none, far)
    same_row, other_row = pair.rows_for(rows[:, 0] if classes is None and rows.shape[1] else None, codes)
    same = distance_to(vectors, queries, same_row)
    return Nearest(rows, distances, same_row, same, other_row, distance_to(vectors, queries, other_row))


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

    @staticmethod
    def empty(num: int, k: int) -> _Best:
        return _Best(np.full((num, k), -np.inf, dtype=np.float32), np.full((num, k), -1))

    def add(self, some: slice, cosines: NDArray[np.float32], start: int) -> None:
        best, rows = self.cosines[some], self.rows[some]
        k = best.shape[1]
        if k == 0:
            return
        if rows[0, -1] < 0 and cosines.shape[1] > k:
            # Nothing to compare with yet: all but the greatest of this block are out.
            columns = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
            query = np.repeat(np.arange(len(cosines)), k)
            column = columns.ravel()
        else:
            query, column = np.nonzero(cosines > best[:, -1:])
        if not len(query):
            return
        kept = np.repeat(np.arange(len(best)), k)
        queries = np.concatenate([kept, query])
        values = np.concatenate([best.ravel(), cosines[query, column]])
        numbers = np.concatenate([rows.ravel(), column + start])
        order = np.lexsort((numbers, -values, queries))
        begins = np.concatenate([[0], np.cumsum(k + np.bincount(query, minlength=len(best)))[:-1]])
        first = order[begins[:, None] + np.arange(k)]
        self.cosines[some], self.rows[some] = values[first], numbers[first]


@dataclass(eq=False)
class _Pair:
    """The best item of the class asked for and the best of any other class so far, (Q, 2).

    Where no class is asked for, the first is the best item of all. Both together are enough to go on: whichever class
    the best item will turn out to have, the best of another class is one of them.
    """

    classes: Rows | None
    cosines: NDArray[np.float32]
    rows: Rows
    codes: Rows

    @staticmethod
    def empty(num: int, classes: Rows | None) -> _Pair:
        shape = (num, 2)
        return _Pair(classes, np.full(shape, -np.inf, np.float32), np.full(shape, -1), np.full(shape, -1))

    def add(self, some: slice, cosines: NDArray[np.float32], codes: Rows, start: int) -> None:
        every = np.arange(len(cosines))
        asked = codes[cosines.argmax(axis=1)] if self.classes is None else self.classes[some]
        is_same = codes == asked[:, None]
        values = [self.cosines[some]]
        rows, labels = [self.rows[some]], [self.codes[some]]
        for kind in (is_same, ~is_same):
            column = np.where(kind, cosines, -np.inf).argmax(axis=1)
            value = np.where(kind[every, column], cosines[every, column], -np.inf)
            values.append(value[:, None])
            rows.append(np.where(np.isneginf(value), -1, column + start)[:, None])
            labels.append(codes[column][:, None])
        value, row, code = (np.concatenate(parts, axis=1) for parts in (values, rows, labels))
        if self.classes is None:
            asked = code[every, value.argmax(axis=1)]
        for place, kind in enumerate((code == asked[:, None], code != asked[:, None])):
            best = np.where(kind, value, -np.inf).argmax(axis=1)
            found = kind[every, best] & ~np.isneginf(value[every, best])
            self.cosines[some, place] = np.where(found, value[every, best], -np.inf)
            self.rows[some, place] = np.where(found, row[every, best], -1)
            self.codes[some, place] = np.where(found, code[every, best], -1)

    def rows_for(self, nearest: Rows | None, codes: Rows | None) -> tuple[Rows, Rows]:
        """Return the rows of both; rounding may have put another class first than the exact distances do."""
        if nearest is None or codes is None:
            return self.rows[:, 0], self.rows[:, 1]
        agrees = self.codes[:, 0] == codes[nearest]
        return nearest, np.where(agrees, self.rows[:, 1], self.rows[:, 0])
