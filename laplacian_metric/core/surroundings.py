"""What surrounds a query among the items of a gallery: distances, margins, local outlier factors and votes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.core.vector_search import Floats, Vectors

VOTERS = 50  # neighbours in the embedding that vote
LOCAL = 10  # neighbours by which the local scale is measured
SMALLEST = 1e-7  # is added to distances before their logarithm


def log_distance(distances: Floats) -> Floats:
    """Return log(d + 1e-7).

    Example:
        >>> log_distance(np.array([0.0])).round(3).tolist()
        [-16.118]
    """
    return np.log(distances + SMALLEST)


@dataclass(frozen=True, eq=False)
class Place:
    """What surrounds Q queries in one space.

    Attributes:
        neighbours: the k nearest items; ids are rows of the gallery, labels the numbers of their classes; or an
            engine's own ids and labels.
        scales: (Q, 10), the distance of each of the 10 nearest items to its own 10th nearest.
        same, other: (Q,), the distances to the nearest item of the class answered and of another class (2 without one).
    """

    neighbours: Neighbours
    scales: Floats
    same: Floats
    other: Floats

    @property
    def nearest(self) -> Floats:
        """The distance to the nearest item, (Q,)."""
        distances: Floats = self.neighbours.distances[:, 0]
        return distances

    @property
    def tenth(self) -> Floats:
        """The distance to the 10th nearest item, or to the last where there are fewer, (Q,)."""
        distances: Floats = self.neighbours.distances[:, min(LOCAL, self.neighbours.k) - 1]
        return distances

    @property
    def outlier_factor(self) -> Floats:
        """LOF, (Q,): log d_10 less the mean over the 10 nearest items of the logarithm of their own d_10."""
        factor: Floats = log_distance(self.tenth) - log_distance(self.scales).mean(axis=1)
        return factor

    @property
    def margin(self) -> Floats:
        """log of the distance to another class over that to the class answered, (Q,)."""
        return log_distance(self.other) - log_distance(self.same)

    def share(self, classes: NDArray[Any]) -> Floats:
        """Return the share (Q,) of a class among the 50 nearest, with weights exp(-(d - d_1)/(d_10 - d_1))."""
        d = self.neighbours.distances[:, :VOTERS]
        width = np.maximum(self.tenth - self.nearest, 1e-12)
        weights = np.exp(-(d - d[:, :1]) / width[:, None])
        share: Floats = (weights * self._is(classes, VOTERS)).sum(axis=1) / weights.sum(axis=1)
        return share

    def vote(self, classes: NDArray[Any]) -> Floats:
        """Return the share (Q,) of a class among the 10 nearest."""
        share: Floats = self._is(classes, LOCAL).mean(axis=1)
        return share

    def _is(self, classes: NDArray[Any], k: int) -> NDArray[np.bool_]:
        assert self.neighbours.labels is not None
        agrees: NDArray[np.bool_] = self.neighbours.labels[:, :k] == classes[:, None]
        return agrees


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Q queries in the embedding z and in the features h.

    ``nearest`` (Q,) are rows of the nearest items in z, or their ids in an engine, and ``classes`` (Q,) their classes.
    """

    queries: Vectors
    nearest: NDArray[Any]
    classes: NDArray[Any] | None
    z: Place
    h: Place
