"""What `Trust` answers to queries, and the verdicts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import Floats
from laplacian_metric.core.neighbours import Neighbours

ACCEPT, UNLIKE, UNRELIABLE = "accept", "unlike anything seen", "no reliable match"
SMALLEST_WEIGHT = 0.001  # an input with a smaller one is never given as a reason


@dataclass(frozen=True, eq=False)
class Answer:
    """Answers to Q queries. `probability` is the number to threshold; the verdict does.

    Attributes:
        probability: (Q,), calibrated for known queries, that the answer is right; NaN where nothing was found.
        match: (Q,), the same before the discount for novelty and before the last calibration.
        known: (Q,), 1 for whatever is no more novel than most known queries, falling to 0 beyond.
        novelty: (Q,), by which out-of-distribution (OOD) queries are ranked: greater is less like anything seen.
        nearest: (Q,), the id of the item that is answered.
        labels: (Q,), its label, or the answered class; None without labels.
        distance: (Q,), 1 - cosine to the nearest item in the embedding.
        verdict: (Q,), "accept", "unlike anything seen" or "no reliable match".
        because: (Q,), the input that speaks most against the answer.
        each: (Q, k), the probability that each of the first k items is right; None unless the target is "each@k".
        none: (Q,), the probability that none of the first k is; None unless the target is "each@k" or "any@k".
        neighbours: what the search returned, at most 50 items for each query, without their vectors.
    """

    probability: Floats
    match: Floats
    known: Floats
    novelty: Floats
    nearest: NDArray[Any]
    labels: NDArray[Any] | None
    distance: Floats
    verdict: NDArray[Any]
    because: NDArray[Any]
    each: Floats | None = None
    none: Floats | None = None
    neighbours: Neighbours | None = None

    def __len__(self) -> int:
        return len(self.probability)

    def at(self, rows: NDArray[np.int64]) -> Answer:
        """Return the answers to some of the queries."""
        columns: dict[str, Any] = {}
        for field in fields(Answer):
            values = getattr(self, field.name)
            columns[field.name] = None if values is None else values[rows]
        return Answer(**columns)


def verdicts(probability: Floats, known: Floats, threshold: float) -> NDArray[Any]:
    """Return the verdict of each query; NaN is never accepted.

    Example:
        >>> verdicts(np.array([0.9, 0.2, 0.2, np.nan]), np.array([1, 1, 0.5, 1]), 0.5).tolist()
        ['accept', 'no reliable match', 'unlike anything seen', 'no reliable match']
    """
    return np.where(probability >= threshold, ACCEPT, np.where(known < 1, UNLIKE, UNRELIABLE))


def reasons(
    verdict: NDArray[Any], contributions: Floats, names: list[str], tails: Floats, tail_names: list[str]
) -> Any:
    """Return the input that speaks most against each answer, (Q,): the largest tail, or the lowest contribution.

    Args:
        verdict: (Q,).
        contributions: (Q, D), of the match inputs with a weight above .001 to the logit.
        names: of these inputs.
        tails: (Q, T), of the novelty's inputs.
        tail_names: of these.
    """
    by_novelty = np.array(tail_names, dtype=object)[np.nan_to_num(tails, nan=-np.inf).argmax(axis=1)]
    if not names:
        return by_novelty
    lowest = np.array(names, dtype=object)[np.nan_to_num(contributions, nan=np.inf).argmin(axis=1)]
    return np.where(verdict == UNLIKE, by_novelty, lowest)
