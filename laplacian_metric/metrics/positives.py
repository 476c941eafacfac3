"""What counts as a right answer to a query: the same class, or a place nearby."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hessians.checks import check_finite, check_matrix
from laplacian_metric.core import labels as core_labels

Labels = core_labels.Labels

BLOCK = 1 << 22  # pairs that are looked at together


class Positives(ABC):
    """Which of ``num_database`` gallery members are positives of each of ``num_queries`` queries.

    ``counts`` (Q,) is the number of positives of each query. Without a database queries are searched among each other,
    and a query is no positive of itself.

    Example:
        >>> Positives.from_labels([0, 0, 1]).counts.tolist()
        [1, 1, 0]
    """

    num_queries: int
    num_database: int
    counts: Tensor

    @staticmethod
    def from_labels(labels: Labels, database_labels: Labels | None = None) -> Positives:
        """Positive is what has the query's label."""
        return _SameLabel(labels, database_labels)

    @staticmethod
    def within(radius: float, positions: Tensor, database_positions: Tensor | None = None) -> Positives:
        """Positive is what lies at most ``radius`` away; positions are (Q, D) and (M, D), as in place recognition.

        Example:
            >>> places = torch.tensor([[0.0, 0.0], [3.0, 4.0], [50.0, 0.0]])
            >>> Positives.within(25.0, places).counts.tolist()
            [1, 1, 0]
        """
        return _Nearby(radius, positions, database_positions)

    @abstractmethod
    def hits(self, queries: Tensor, members: Tensor) -> Tensor:
        """Whether the gallery rows ``members`` (n, k) are positives of ``queries`` (n,): bool (n, k)."""


class _SameLabel(Positives):
    """Positives by equal labels, stored as class numbers."""

    def __init__(self, labels: Labels, database_labels: Labels | None) -> None:
        queries = as_labels("labels", labels)
        gallery = queries if database_labels is None else as_labels("database_labels", database_labels)
        _, classes = torch.unique(torch.cat([queries, gallery]), return_inverse=True)
        self._queries, self._gallery = classes[: len(queries)], classes[len(queries) :]
        self.num_queries, self.num_database = len(queries), len(gallery)
        sizes = torch.bincount(self._gallery, minlength=int(classes.max()) + 1)
        self.counts = sizes[self._queries] - int(database_labels is None)

    def hits(self, queries: Tensor, members: Tensor) -> Tensor:
        same: Tensor = self._gallery[members] == self._queries[queries, None]
        return same


class _Nearby(Positives):
    """Positives by distance between positions, in float64: map coordinates have 7 digits before the metre."""

    def __init__(self, radius: float, positions: Tensor, database_positions: Tensor | None) -> None:
        if not radius >= 0:
            raise ValueError(f"radius is {radius}, a distance of at least 0 is needed")
        gallery = positions if database_positions is None else database_positions
        for name, places in (("positions", positions), ("database_positions", gallery)):
            check_matrix(name, places)
            check_finite(name, places)
        if positions.shape[1] != gallery.shape[1]:
            raise ValueError(
                f"positions has {positions.shape[1]} coordinates and database_positions {gallery.shape[1]}"
            )
        self._radius = radius
        self._queries, self._gallery = positions.detach().double(), gallery.detach().double()
        self.num_queries, self.num_database = len(positions), len(gallery)
        self.counts = self._count() - int(database_positions is None)

    def _count(self) -> Tensor:
        """Counts by looking at all pairs, block by block."""
        members = torch.arange(self.num_database, device=self._queries.device)[None]
        rows = torch.arange(self.num_queries, device=members.device)
        size = max(1, BLOCK // max(1, self.num_database))
        counts = [self.hits(some, members.expand(len(some), -1)).sum(1) for some in rows.split(size)]
        return torch.cat(counts)

    def hits(self, queries: Tensor, members: Tensor) -> Tensor:
        # One coordinate after the other: the same sum, in the same order, whatever the shape.
        squared = torch.zeros(members.shape, dtype=torch.float64, device=members.device)
        for mine, theirs in zip(self._queries.T, self._gallery.T, strict=True):
            squared += (mine[queries, None] - theirs[members]).square()
        near: Tensor = squared.sqrt() <= self._radius
        return near


def as_labels(name: str, labels: Labels) -> Tensor:
    """Return labels (N,) of any kind as a tensor of whole numbers, at least one."""
    numbers = core_labels.as_labels(name, labels)
    if len(numbers) == 0:
        raise ValueError(f"{name} is empty: at least one label is needed")
    return numbers


def check_length(name: str, length: int, number: int, what: str) -> None:
    """Refuse another number of labels than there are embeddings."""
    if length != number:
        raise ValueError(f"{name} has {length} entries for {number} {what}: one label for each is needed")


def as_positives(
    labels: Labels | Positives,
    database_labels: Labels | None,
    *,
    queries: int,
    database: int | None,
) -> Positives:
    """Labels or positives, checked against the number of embeddings (and of those in the database)."""
    if isinstance(labels, Positives):
        if database_labels is not None:
            raise ValueError(
                "database_labels is given, but the positives passed as labels already know the database"
            )
        expected = queries if database is None else database
        if (labels.num_queries, labels.num_database) != (queries, expected):
            raise ValueError(
                f"the positives are of {labels.num_queries} queries in {labels.num_database} gallery members, but "
                f"there are {queries} embeddings and a gallery of {expected}"
            )
        return labels
    if (database is None) != (database_labels is None):
        present, missing = (
            ("database_labels", "database") if database is None else ("database", "database_labels")
        )
        raise ValueError(f"{present} is given without {missing}: a gallery needs both")
    positives = Positives.from_labels(labels, database_labels)
    check_length("labels", positives.num_queries, queries, "embeddings")
    if database is not None:
        check_length("database_labels", positives.num_database, database, "embeddings in the database")
    return positives
