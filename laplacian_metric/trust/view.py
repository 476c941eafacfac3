"""A Gaussian view of a gallery's classes: a small subspace, in which each class has a mean and all one covariance."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import Floats, Rows, as_labels, check, norms_of
from laplacian_metric.core.gallery import Gallery

MOST_DIMENSIONS = 256
DENSE = 512  # up to so many features all singular directions are computed
EXTRA_COLUMNS, ITERATIONS, SEED = 20, 3, 0
SHRINKAGE = 0.05
LEAST_DISTANCE = 1e-9
UNSEEN = 0.001  # the posterior of a class that no item of the sample has
BLOCK = 4096
SAMPLED = 100_000

# Yields unit vectors (n, H) with the numbers of their classes (n,), from the first to the last item, at every call.
Blocks = Callable[[], Iterator[tuple[Floats, Rows]]]


@dataclass(frozen=True, eq=False)
class GaussianView:
    """Gaussians of the classes' unit features in their r leading directions; specs: p = hB, whitened within classes.

    Attributes:
        basis: B (H, r), the leading singular directions of the uncentred features.
        whitening: W (r, r), which makes the shrunk covariance within classes the identity.
        mean: m (r,), of all items.
        precision: (r, r), the inverse of the shrunk total covariance.
        means: mu W (C, r), the whitened mean of each class.
        names: the C labels, in the order of their numbers.
        items: how many items it was computed from.
    """

    basis: Floats
    whitening: Floats
    mean: Floats
    precision: Floats
    means: Floats
    names: tuple[Hashable, ...]
    items: int

    @staticmethod
    def of(h: Any, labels: Any = None, *, sample: int = SAMPLED) -> GaussianView:
        """Return the view of features (N, H) with labels (N,), or of a gallery, of which a sample is taken.

        Without labels all items are one class.

        Example:
            >>> labels = np.arange(90) % 3
            >>> h = np.eye(3)[labels] + 0.1 * np.random.default_rng(0).standard_normal((90, 3))
            >>> view = GaussianView.of(h, labels)
            >>> view.posterior(view.project(np.eye(3))).argmax(axis=1).tolist()
            [0, 1, 2]
        """
        if isinstance(h, Gallery):
            _, h, labels = h.sample(sample)
        rows = check("h", h, "N H")
        names: tuple[Hashable, ...] = (None,)
        codes = np.zeros(len(rows), dtype=np.int64)
        if labels is not None:
            numbers: dict[Hashable, int] = {}
            codes = np.array(
                [numbers.setdefault(label, len(numbers)) for label in as_labels("labels", labels, len(rows))]
            )
            names = tuple(numbers)
        norms = norms_of("h", rows)

        def blocks() -> Iterator[tuple[Floats, Rows]]:
            for start in range(0, len(rows), BLOCK):
                some = slice(start, start + BLOCK)
                yield np.asarray(rows[some], dtype=np.float64) / norms[some, None], codes[some]

        return _fitted(blocks, names, len(rows), rows.shape[1])

    @cached_property
    def numbers(self) -> dict[Hashable, int]:
        """The number of each label."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def width(self) -> int:
        """The number H of features."""
        return len(self.basis)

    @property
    def temperature(self) -> float:
        """tau of the class posterior."""
        return max(1.0, len(self.mean) / 32)

    @cached_property
    def _whitened_basis(self) -> Floats:
        return self.basis @ self.whitening

    def project(self, units: Floats) -> Floats:
        """Return p = hB, (..., r), of unit features (..., H)."""
        projected: Floats = units @ self.basis
        return projected

    def whitened(self, units: NDArray[Any]) -> NDArray[Any]:
        """Return (p - m) W scaled to unit length, (..., r), of unit features (..., H), in their precision."""
        directions: NDArray[Any] = units @ self._whitened_basis.astype(units.dtype, copy=False)
        directions -= (self.mean @ self.whitening).astype(units.dtype, copy=False)
        lengths = np.sqrt(np.einsum("...r,...r->...", directions, directions))
        directions /= np.maximum(lengths, np.finfo(units.dtype).tiny)[..., None]
        return directions

    def distances(self, projected: Floats) -> Floats:
        """Return D2, (Q, C): the squared whitened distances to the means of the classes, at least 1e-9."""
        p = projected @ self.whitening
        squares = (p**2).sum(axis=1)[:, None] - 2 * p @ self.means.T + (self.means**2).sum(axis=1)
        bounded: Floats = np.maximum(squares, LEAST_DISTANCE)
        return bounded

    def posterior(self, projected: Floats) -> Floats:
        """Return the posterior of the classes (Q, C), softmax(-D2/(2 tau))."""
        scores = -self.distances(projected) / (2 * self.temperature)
        scores -= scores.max(axis=1, keepdims=True)
        weights = np.exp(scores)
        shares: Floats = weights / weights.sum(axis=1, keepdims=True)
        return shares

    def posterior_at(self, projected: Floats, codes: Rows) -> Floats:
        """Return the posterior (Q,) of one class for each query; .001 for classes that the view does not have."""
        seen = (codes >= 0) & (codes < len(self.names))
        shares = self.posterior(projected)[np.arange(len(codes)), np.where(seen, codes, 0)]
        return np.where(seen, shares, UNSEEN)

    def outside(self, projected: Floats) -> dict[str, Floats]:
        """Return how far queries (Q, r) are from all items: the residual, and the Mahalanobis distances where C > 1."""
        leading = max(1, min(projected.shape[1], self.width // 2))
        inside = (projected[:, :leading] ** 2).sum(axis=1)
        nearest = self.distances(projected).min(axis=1)
        parts = {
            "distance from the gallery's main directions": np.log(np.clip(1 - inside, 0, 1) + 1e-6),
            "distance to the nearest class": np.log(nearest),
        }
        if len(self.names) > 1:
            centred = projected - self.mean
            total = np.einsum("qr,rs,qs->q", centred, self.precision, centred)
            parts["distance to the nearest class, relative to all items"] = nearest - total
        return parts


def _fitted(blocks: Blocks, names: tuple[Hashable, ...], num: int, width: int) -> GaussianView:
    """Return the view of items, read twice: once for the directions, once for the moments in them."""
    r = max(1, min(MOST_DIMENSIONS, width, num // 4))
    second_moment = np.zeros((width, width))
    for units, _ in blocks():
        second_moment += units.T @ units
    basis = _leading_directions(second_moment, r)
    sums, counts, squares = np.zeros((len(names), r)), np.zeros(len(names)), np.zeros((r, r))
    for units, codes in blocks():
        p = units @ basis
        np.add.at(sums, codes, p)
        counts += np.bincount(codes, minlength=len(names))
        squares += p.T @ p
    means = sums / counts[:, None]
    mean = sums.sum(axis=0) / num
    within = (squares - (means * counts[:, None]).T @ means) / max(1, num - len(names))
    total = squares / num - np.outer(mean, mean)
    if np.trace(within) <= 1e-12:  # one item a class
        within = total
    values, vectors = np.linalg.eigh(_shrunk(within))
    whitening = vectors / np.sqrt(values)
    precision = np.linalg.inv(_shrunk(total))
    return GaussianView(basis, whitening, mean, precision, means @ whitening, names, num)


def _leading_directions(second_moment: Floats, r: int) -> Floats:
    """Return the r leading eigenvectors (H, r) of h'h; above 512 features by seeded subspace iterations."""
    width = len(second_moment)
    if width <= DENSE:
        leading: Floats = np.linalg.eigh(second_moment)[1][:, ::-1][:, :r]
        return leading
    columns = min(width, r + EXTRA_COLUMNS)
    space = np.random.default_rng(SEED).standard_normal((width, columns))
    for _ in range(ITERATIONS):
        space = np.linalg.qr(second_moment @ space)[0]
    vectors = np.linalg.eigh(space.T @ second_moment @ space)[1][:, ::-1]
    directions: Floats = space @ vectors[:, :r]
    return directions


def _shrunk(covariance: Floats) -> NDArray[Any]:
    r = len(covariance)
    ridge = SHRINKAGE * np.trace(covariance) / r + 1e-12
    shrunk: NDArray[Any] = (1 - SHRINKAGE) * covariance + ridge * np.eye(r)
    return shrunk
