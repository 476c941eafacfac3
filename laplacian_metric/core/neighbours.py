"""The nearest items of some queries, whoever searched, and what surrounds a query among them: numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laplacian_metric.core.vector_search import Floats, Vectors

ROUNDING = 1e-4  # what engines in float32 may return below 0, or out of order


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The k nearest items of Q queries, the nearest first: checked, copied and read-only.

    Attributes:
        ids: (Q, k), rows or whatever the engine calls its items.
        distances: (Q, k), float64, at least 0 and ascending; 1 - cosine where `Trust` reads them.
        labels: (Q, k), the items' labels, or None where they have none.

    Example:
        >>> neighbours = Neighbours([[7, 3]], [[0.1, 0.4]], [["cat", "dog"]])
        >>> len(neighbours), neighbours.k, neighbours.ids.tolist(), neighbours.labels.tolist()
        (1, 2, [[7, 3]], [['cat', 'dog']])
    """

    ids: NDArray[Any]
    distances: NDArray[np.float64]
    labels: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        distances = np.array(self.distances, dtype=np.float64)
        if distances.ndim != 2 or distances.shape[1] == 0:
            raise ValueError(f"distances has shape {distances.shape}: (queries, neighbours) is needed")
        if np.isnan(distances).any():
            row = int(np.isnan(distances).any(axis=1).argmax())
            raise ValueError(
                f"distances has NaN in row {row}: leave out neighbours that the engine did not find"
            )
        if distances.size and distances.min() < -ROUNDING:
            raise ValueError(
                f"distances has {distances.min():.3g}: pass distances, such as 1 - cosine, and not similarities"
            )
        if (np.diff(distances, axis=1) < -ROUNDING).any():
            row = int((np.diff(distances, axis=1) < -ROUNDING).any(axis=1).argmax())
            raise ValueError(f"distances does not ascend in row {row}: sort each row, the nearest item first")
        distances = np.maximum.accumulate(np.maximum(distances, 0, out=distances), axis=1)
        arrays = {"distances": distances, "ids": np.array(self.ids)}
        if self.labels is not None:
            arrays["labels"] = np.array(self.labels)
        for name, array in arrays.items():
            if array.shape != distances.shape:
                raise ValueError(
                    f"{name} has shape {array.shape}, distances has {distances.shape}: one for each distance is needed"
                )
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @staticmethod
    def from_cosines(ids: ArrayLike, cosines: ArrayLike, labels: ArrayLike | None = None) -> Neighbours:
        """Return the neighbours that an engine found by inner products of unit vectors.

        Example:
            >>> Neighbours.from_cosines([[7, 3]], [[1.0, 0.5]]).distances.tolist()
            [[0.0, 0.5]]
        """
        return Neighbours(ids, 1 - np.asarray(cosines, dtype=np.float64), labels)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.distances)

    @property
    def k(self) -> int:
        """The number of neighbours of each query."""
        return int(self.distances.shape[1])

    def __getitem__(self, queries: slice | NDArray[Any]) -> Neighbours:
        """Return the neighbours of some of the queries."""
        labels = None if self.labels is None else self.labels[queries]
        return Neighbours(self.ids[queries], self.distances[queries], labels)


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
