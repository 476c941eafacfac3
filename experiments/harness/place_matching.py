"""Which images answer which: those of a class, or those taken nearby, where a data set says so.

Where images match by distance (place recognition) two things take the place of classes. What is measured goes by the
distance itself: an answer is right if it was taken at most `positive_distance` from the query, and where a data set
tells queries from its database, the database is searched. What is trained on, and what chooses an epoch, goes by
places: squares so small that no two images in one of them are farther apart than that. Images of neighbouring squares
may be as near and count as a negative pair; in a batch of a few places out of a whole city that is rare, and the
distances that a square has inside are what is learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.metrics.positives import Labels, Positives
from laplacian_metric.metrics.ranking import Ranking, rank_by


@dataclass(frozen=True)
class Matching:
    """The queries among N images, where answers are looked for, and which are right.

    Attributes:
        right: labels (N,), or the positives of the queries in the database.
        queries, database: positions among the images; None where every image searches all others.
    """

    right: Labels | Positives
    queries: Tensor | None = None
    database: Tensor | None = None

    @property
    def by_distance(self) -> bool:
        """Whether images match by distance and not by class."""
        return isinstance(self.right, Positives)

    def gallery_size(self, number: int) -> int:
        """How many of so many images a query is compared with."""
        return number - 1 if self.database is None else len(self.database)

    def of_queries(self, values: Tensor) -> Tensor:
        """What belongs to the queries, of values (N,)."""
        return values if self.queries is None else values[self.queries]

    def rank(self, points: Tensor, k: int) -> Ranking:
        """The neighbours of the queries among unit vectors (N, Z)."""
        if self.queries is None or self.database is None:
            return metrics.rank(points, self.right, k, at_r=True)
        return metrics.rank(points[self.queries], self.right, k, database=points[self.database], at_r=True)

    def rank_by(
        self,
        score: Callable[[StochasticEmbedding, StochasticEmbedding], Tensor],
        e: StochasticEmbedding,
        k: int,
    ) -> Ranking:
        """The same by a score (B, M) of queries (B) and a database (M)."""
        if self.queries is None or self.database is None:
            return rank_by(lambda rows: score(e[rows], e), self.right, k)
        queries, database = e[self.queries], e[self.database]
        return rank_by(lambda rows: score(queries[rows], database), self.right, k, own=False)


def matching(images: Dataset) -> Matching:
    """How the images of a set match."""
    if images.positive_distance is None:
        return Matching(images.labels)
    positions = _positions(images)
    is_query = images.extras.get("is_query")
    if is_query is None or bool(is_query.all()) or not bool(is_query.any()):
        return Matching(Positives.within(images.positive_distance, positions))
    queries, database = is_query.nonzero()[:, 0], (~is_query).nonzero()[:, 0]
    right = Positives.within(images.positive_distance, positions[queries], positions[database])
    return Matching(right, queries, database)


def by_place(images: Dataset) -> Dataset:
    """The same images labelled by places where they match by distance, and as they are where they do not."""
    if images.positive_distance is None:
        return images
    labels = places(_positions(images), images.positive_distance)
    names = ("place",) * (int(labels.max()) + 1 if len(labels) else 0)
    return replace(images, labels=labels, class_names=names)


def places(positions: Tensor, distance: float) -> Tensor:
    """Numbers (N,) of squares in whose corners positions (N, 2) are just ``distance`` apart.

    Example:
        >>> places(torch.tensor([[0.0, 0.0], [5.0, 5.0], [8.0, 0.0]]), 10.0).tolist()
        [0, 0, 1]
    """
    squares = (positions.double() / (distance / math.sqrt(2))).floor()
    numbers: Tensor = torch.unique(squares, dim=0, return_inverse=True)[1]
    return numbers


def _positions(images: Dataset) -> Tensor:
    if "positions" not in images.extras:
        raise ValueError(
            f"the images of {images.title} match by distance, but where they were taken is not "
            "in the files: take a split whose positions are published"
        )
    return images.extras["positions"]
