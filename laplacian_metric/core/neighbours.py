"""The nearest items of some queries, whoever searched: numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        object.__setattr__(self, "distances", _frozen(distances))
        object.__setattr__(self, "ids", _alike("ids", self.ids, distances.shape))
        if self.labels is not None:
            object.__setattr__(self, "labels", _alike("labels", self.labels, distances.shape))

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


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values


def _alike(name: str, values: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    array = np.array(values)
    if array.shape != shape:
        raise ValueError(
            f"{name} has shape {array.shape}, distances has {shape}: one for each distance is needed"
        )
    return _frozen(array)
