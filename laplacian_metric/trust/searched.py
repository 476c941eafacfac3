"""What `Trust` asks of a gallery, whoever searches it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from numpy.typing import NDArray

from laplacian_metric.core.neighbours import Neighbours, Surroundings
from laplacian_metric.core.vector_search import Vectors


class SearchedGallery(Protocol):
    """Items that are searched by arrays, a `LabelledGallery`, or by an engine.

    ``rows`` are the items' places in the arrays, or their ids in the engine; classes are numbers, or labels.
    """

    @property
    def width(self) -> int:
        """The number H of features of each item."""

    @property
    def labelled(self) -> bool:
        """Whether the items have labels."""

    def __len__(self) -> int: ...

    def surroundings(
        self,
        features: Vectors,
        embeddings: Vectors,
        *,
        neighbours: Neighbours | None = None,
        feature_neighbours: Neighbours | None = None,
    ) -> Surroundings:
        """Return what surrounds queries."""

    def around_items(self, rows: NDArray[Any]) -> Surroundings:
        """Return what surrounds some of the items, each left out of its own surroundings."""

    def reference(self, most: int | None = None) -> NDArray[Any]:
        """Return the rows of at most so many items; None for all of them."""

    def classes_at(self, rows: NDArray[Any]) -> NDArray[Any] | None:
        """Return the classes of some items; None without labels."""

    def classes_of(self, labels: Any, num: int) -> tuple[NDArray[Any], int]:
        """Return the classes (Q,) of queries' labels, and how many of them no item has."""

    def labels_of(self, classes: NDArray[Any]) -> list[Hashable]:
        """Return the labels of classes."""

    def updated(self, h: Any, labels: Any, remove: Any, head: Any) -> SearchedGallery:
        """Return a gallery without some items and with further ones."""

    def store_scales(self) -> None:
        """Compute the local scales of all items."""
