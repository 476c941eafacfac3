"""Passes over all items, a block at a time, so that mapped vectors never have to be in memory together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laplacian_metric.retrieval.gallery import Floats, Gallery, Numbers, Scan, merge, scan_parts
from laplacian_metric.retrieval.items import Items, angles

# Numbers of pairs: of a matrix of cosines, and of a computation with several float64 and vectors for each.
COSINES_AT_ONCE = 1 << 24
PAIRS_AT_ONCE = 1 << 18
LIKELIHOOD_ROWS = 1 << 12
# Cosines of unit vectors in float32 are off by no more.
ROUNDING = 1e-5


def queries_at_once(per_query: int, most: int = PAIRS_AT_ONCE) -> int:
    """How many queries are dealt with together when each takes so many pairs."""
    return max(1, most // max(per_query, 1))


def slices(num: int, at_once: int) -> Iterator[slice]:
    """All of so many, a few at a time."""
    return (slice(start, min(start + at_once, num)) for start in range(0, num, at_once))


def by_expected_distance(gallery: Gallery, queries: Items, k: int) -> Numbers:
    """The rows (Q, k) of least E|x - y|^2 = 2 - 2 A(k1) A(k2) m1.m2: the greatest inner products with A(k2) m2."""
    best: list[tuple[Numbers, NDArray[np.float32]]] = []
    for start, block in gallery.blocks():
        scaled = block.mean * gallery.length[start : start + len(block), None]
        rows, value = Scan(scaled)(queries.mean, min(k, len(block)))
        best = [merge([*best, (rows + start, value)], k)]
    return best[0][0]


def by_likelihood(gallery: Gallery, queries: Items, k: int) -> Numbers:
    """The rows (Q, k) of greatest expected likelihood among all items; some microseconds for each pair."""
    from laplacian_metric.retrieval.likelihood import log_expected_likelihood

    groups = list(slices(len(queries), queries_at_once(LIKELIHOOD_ROWS)))
    best: list[list[tuple[Numbers, NDArray[np.float64]]]] = [[] for _ in groups]
    for start, block in gallery.blocks(LIKELIHOOD_ROWS):
        keep = min(k, len(block))
        for i, some in enumerate(groups):
            own = queries[some]
            cosines = _cosines(own.mean, block.mean)
            likelihood = log_expected_likelihood(cosines, own.kappa[:, None], block.kappa, gallery.dim)
            rows = np.argpartition(-likelihood, keep - 1, axis=1)[:, :keep]
            new = (rows + start, np.take_along_axis(likelihood, rows, axis=1))
            best[i] = [merge([*best[i], new], k)]
    return np.concatenate([rows for ((rows, _),) in best]) if best else np.zeros((0, k), dtype=np.int64)


def within(gallery: Gallery, queries: Floats, radius: NDArray[np.float64]) -> tuple[Numbers, Numbers, Floats]:
    """All pairs of a query and an item at an angle of at most the query's radius.

    Returns:
        the query and the row of each, in the order of queries, and their cosine.
    """
    none = np.zeros(0, dtype=np.int64)
    triples: list[tuple[Numbers, Numbers, Floats]] = [(none, none, np.zeros(0, dtype=np.float32))]
    at_least = np.cos(np.minimum(radius, np.pi))
    for start, block in gallery.blocks():
        for some in slices(len(queries), queries_at_once(len(block), COSINES_AT_ONCE)):
            cosines = _cosines(queries[some], block.mean)
            limit = at_least[some, None]
            query, row = np.nonzero(cosines >= limit - ROUNDING)
            cosine = cosines[query, row]
            query += some.start
            inside = cosine > at_least[query] + ROUNDING
            near = np.flatnonzero(~inside)
            for few in slices(len(near), PAIRS_AT_ONCE):
                pair = near[few]
                inside[pair] = angles(queries[query[pair]], block.mean[row[pair]]) <= radius[query[pair]]
            triples.append((query[inside], row[inside] + start, cosine[inside]))
    query, row, cosine = (np.concatenate(parts) for parts in zip(*triples, strict=True))
    order = np.lexsort((row, -cosine, query))
    return query[order], row[order], cosine[order]


def nearest_of_own(
    gallery: Gallery, queries: Floats, labels: ArrayLike, item_labels: ArrayLike
) -> tuple[Numbers, NDArray[np.float64]]:
    """The row of the nearest item that has the query's label, and its angle; -1 and infinity where none has."""
    own, others = _labels("labels", labels, len(queries)), _labels("item_labels", item_labels, len(gallery))
    best = np.full(len(queries), -np.inf)
    rows = np.full(len(queries), -1)
    for start, block in gallery.blocks():
        theirs = others[start : start + len(block)]
        for some in slices(len(queries), queries_at_once(len(block), COSINES_AT_ONCE)):
            cosines = np.where(own[some, None] == theirs, _cosines(queries[some], block.mean), -np.inf)
            row = cosines.argmax(axis=1)
            value = np.take_along_axis(cosines, row[:, None], axis=1)[:, 0]
            better = value > best[some]
            rows[some] = np.where(better, row + start, rows[some])
            best[some] = np.where(better, value, best[some])
    angle = np.full(len(queries), np.inf)
    has = np.flatnonzero(rows >= 0)
    for few in slices(len(has), PAIRS_AT_ONCE):
        angle[has[few]] = angles(queries[has[few]], gallery.mean_at(rows[has[few]]))
    return rows, angle


def _cosines(queries: Floats, mean: Floats) -> Floats:
    cosines: Floats = queries @ mean.T
    return np.clip(cosines, -1, 1, out=cosines)


def _labels(name: str, labels: ArrayLike, num: int) -> NDArray[np.generic]:
    array = np.asarray(labels)
    if array.shape != (num,):
        raise ValueError(f"{name} has shape {array.shape} for {num}: one label for each is needed")
    return array


def nearest(gallery: Gallery, queries: Floats) -> tuple[Numbers, Floats]:
    """The row of the nearest item of each query, (Q,), and its cosine."""
    rows, similarity = scan_parts([part.mean for part in gallery.parts], queries, 1)
    return rows[:, 0], np.clip(similarity[:, 0], -1, 1)


def cosines_at(gallery: Gallery, queries: Floats, rows: Numbers) -> Floats:
    """The cosines of queries (Q, D) with some rows (Q, n) each."""
    cosines = np.empty(rows.shape, dtype=np.float32)
    for some in slices(len(rows), queries_at_once(rows.shape[1])):
        cosines[some] = np.einsum("qd,qnd->qn", queries[some], gallery.mean_at(rows[some]))
    return np.clip(cosines, -1, 1, out=cosines)
