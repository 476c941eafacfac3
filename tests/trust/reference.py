"""What the inputs of `Trust` are, in loops over plain numbers, as section 3 of the recipe says it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

EPS = 1e-7


def distance(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(float), b.astype(float)
    return float(((a / np.linalg.norm(a) - b / np.linalg.norm(b)) ** 2).sum() / 2)


def ranked(
    x: np.ndarray, items: Sequence[np.ndarray], without: Sequence[int] = ()
) -> list[tuple[float, int]]:
    return sorted((distance(x, item), i) for i, item in enumerate(items) if i not in without)


def scale(j: int, items: Sequence[np.ndarray], k: int, without: Sequence[int] = ()) -> float:
    """The distance of item j to its k-th nearest, or to the last; 2 if it is alone."""
    nearest_items = ranked(items[j], items, [j, *without])
    return nearest_items[min(k, len(nearest_items)) - 1][0] if nearest_items else 2.0


def log_d(d: float) -> float:
    return math.log(d + EPS)


def outlier_factor(x: np.ndarray, items: Sequence[np.ndarray], without: Sequence[int] = ()) -> float:
    nearest_items = ranked(x, items, without)[:10]
    own = [log_d(scale(j, items, 10, without)) for _, j in nearest_items]
    return log_d(nearest_items[-1][0]) - sum(own) / len(own)


def match_inputs(
    h: np.ndarray,
    z: np.ndarray,
    hs: np.ndarray,
    zs: np.ndarray,
    labels: Sequence[object],
    own: int | None = None,
) -> list[float]:
    without = [] if own is None else [own]
    in_z, in_h = ranked(z, zs, without), ranked(h, hs, without)
    c = labels[in_z[0][1]]

    def nearest(ranked_items: list[tuple[float, int]], same: bool) -> float:
        return next((d for d, j in ranked_items if (labels[j] == c) == same), 2.0)

    first, tenth = in_z[0][0], in_z[min(10, len(in_z)) - 1][0]
    width = max(tenth - first, 1e-12)
    weights = [(math.exp(-(d - first) / width), labels[j] == c) for d, j in in_z[:50]]
    share = sum(w for w, same in weights if same) / sum(w for w, _ in weights)
    share = min(max(share, 0.001), 0.999)
    voters = in_h[:10]
    return [
        log_d(first),
        log_d(in_h[0][0]),
        outlier_factor(z, zs, without),
        outlier_factor(h, hs, without),
        log_d(nearest(in_z, False)) - log_d(first),
        log_d(nearest(in_h, False)) - log_d(nearest(in_h, True)),
        math.log(share / (1 - share)),
        sum(labels[j] == c for _, j in voters) / len(voters),
    ]


def mahalanobis(x: np.ndarray, rows: np.ndarray, rank: int) -> float:
    """x^T E[h h^T]^-1 x over |x|^2, where all eigenvalues beyond the rank are their mean."""
    rows, x = rows.astype(float), x.astype(float)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    values, vectors = values[::-1], vectors[:, ::-1]
    rest = values[rank:].sum() / (len(values) - rank) if rank < len(values) else 0.0
    floor = 1e-12 + 1e-6 * values[0]
    scaled = 0.0
    for i in range(len(values)):
        scaled += (vectors[:, i] @ x) ** 2 / max(values[i] if i < rank else rest, floor)
    return scaled / float(x @ x)


def novelty_inputs(h: np.ndarray, hs: np.ndarray, rank: int | None, own: int | None = None) -> list[float]:
    without = [] if own is None else [own]
    nearest_items = ranked(h, hs, without)
    inputs = [
        log_d(nearest_items[0][0]),
        log_d(nearest_items[min(10, len(nearest_items)) - 1][0]),
        outlier_factor(h, hs, without),
    ]
    return inputs if rank is None else [*inputs, math.log(mahalanobis(h, hs, rank))]
