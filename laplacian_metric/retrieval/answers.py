"""What an index answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.retrieval.items import Ids

if TYPE_CHECKING:
    from laplacian_metric.trust.answer import Answer


@dataclass(frozen=True, eq=False)
class Answers:
    """The k first items for each of Q queries.

    Attributes:
        ids: (Q, k); -1, or empty text, where a query was refused.
        rows: (Q, k), the items' places in the index; -1 where a query was refused; None where an engine searched.
        similarity: (Q, k) float32, cosines between the mean directions; NaN where a query was refused.
        probability: (Q, k), that the item is of the query's class, or None where the index has no match probability.
        answered: (Q,), whether the threshold lets the query be answered, or None where the index has none.
        trust: what `Trust` says about each query, or None where the index has none.
    """

    ids: Ids
    rows: NDArray[np.int64] | None
    similarity: NDArray[np.float32]
    probability: NDArray[np.float64] | None = None
    answered: NDArray[np.bool_] | None = None
    trust: Answer | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON; NaN is None."""
        content = {
            "ids": self.ids.tolist(),
            "rows": None if self.rows is None else self.rows.tolist(),
            "similarity": _numbers(self.similarity),
        }
        content["probability"] = None if self.probability is None else _numbers(self.probability)
        content["answered"] = None if self.answered is None else self.answered.tolist()
        return content


@dataclass(frozen=True, eq=False)
class CredibleSets:
    """For each of Q queries the items within its credible cap, the nearest first.

    Attributes:
        offsets: (Q + 1,); the set of query i is from offsets[i] up to offsets[i + 1] of the others.
        ids: (T,).
        rows: (T,); None where an engine searched.
        similarity: (T,) float32.
        radius: (Q,), of the caps, in radians.

    Example:
        >>> sets = CredibleSets(
        ...     np.array([0, 1, 3]), np.array([7, 5, 9]), np.array([2, 0, 4]), np.float32([0.9, 0.8, 0.5]), np.ones(2)
        ... )
        >>> sets.sizes, sets[1]
        (array([1, 2]), array([5, 9]))
    """

    offsets: NDArray[np.int64]
    ids: Ids
    rows: NDArray[np.int64] | None
    similarity: NDArray[np.float32]
    radius: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.radius)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many items each set has, (Q,)."""
        return np.diff(self.offsets)

    def __getitem__(self, query: int) -> Ids:
        """The ids of one query's set."""
        if not -len(self) <= query < len(self):
            raise IndexError(f"there is no query {query} among {len(self)}")
        query %= len(self)
        return self.ids[self.offsets[query] : self.offsets[query + 1]]

    def __iter__(self) -> Iterator[Ids]:
        return (self[query] for query in range(len(self)))


def _numbers(values: NDArray[np.floating[Any]]) -> list[list[float | None]]:
    return [[None if value != value else value for value in row] for row in values.tolist()]
