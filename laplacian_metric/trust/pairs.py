"""Pairs, one to one: the probability that both are of one class, its likelihood ratio, and Venn-Abers intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from laplacian_metric.core.check import Floats, check
from laplacian_metric.trust.fitting import Flags, fit_sigmoid, sigmoid
from laplacian_metric.trust.guarantee import rejecting


class PairAnswer(NamedTuple):
    """Answers to P pairs.

    Attributes:
        probability: (P,), that both are of one class, at the share of same pairs that was fitted on.
        log_likelihood_ratio: (P,), natural logarithm, free of that share.
        low, high: (P,), the Venn-Abers interval of the probability.
    """

    probability: Floats
    log_likelihood_ratio: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class PairTrust:
    """Calibrated 1:1 comparisons of embeddings.

    Attributes:
        slope: a and b of sigmoid(a + b similarity).
        similarities: (n,), of the pairs it was fitted on, ascending.
        same: (n,), whether each is of one class.
    """

    slope: tuple[float, float]
    similarities: Floats
    same: Flags

    @staticmethod
    def fit(similarities: Any, same: Any) -> PairTrust:
        """Calibrate on pairs that nothing was trained on.

        Args:
            similarities: (n,), such as cosines.
            same: (n,), whether both are of one class.

        Example:
            >>> generator = np.random.default_rng(0)
            >>> same = np.arange(1000) % 2 == 0
            >>> pairs = PairTrust.fit(generator.normal(np.where(same, 0.6, 0.2), 0.15), same)
            >>> answer = pairs([0.1, 0.4, 0.7])
            >>> answer.probability.round(1).tolist(), bool((answer.low <= answer.high).all())
            ([0.0, 0.5, 1.0], True)
        """
        values, flags = check("similarities", similarities, "n").astype(np.float64), np.asarray(same)
        if flags.dtype != np.bool_ or flags.shape != values.shape:
            raise TypeError(
                f"same has dtype {flags.dtype} and shape {flags.shape}: one boolean a pair is needed"
            )
        if not 0 < flags.sum() < len(flags):
            raise ValueError(
                f"same has {int(flags.sum())} of {len(flags)} pairs of one class: both kinds are needed"
            )
        order = np.argsort(values, kind="stable")
        spread = max(float(values.std()), 1e-12)
        a, b = fit_sigmoid((values - values.mean()) / spread, flags)
        return PairTrust((a - b * float(values.mean()) / spread, b / spread), values[order], flags[order])

    def __call__(self, similarities: Any) -> PairAnswer:
        """Answer pairs of these similarities (P,)."""
        values = check("similarities", similarities, "P").astype(np.float64)
        a, b = self.slope
        share = float(self.same.mean())
        logits = a + b * values
        low, high = self._intervals(values)
        return PairAnswer(sigmoid(logits), logits - np.log(share / (1 - share)), low, high)

    def threshold(self, *, false_match_rate: float, confidence: float = 0.9) -> float:
        """Return the similarity that pairs of different classes reach at most at a rate, with confidence."""
        return rejecting(self.similarities[~self.same], rate=false_match_rate, confidence=confidence)

    def _intervals(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the probabilities with each pair counted as different, and as same (inductive Venn-Abers), (P,)."""
        scores, starts = np.unique(self.similarities, return_index=True)
        counts = np.diff(np.append(starts, len(self.same))).astype(np.float64)
        sums = np.add.reduceat(self.same.astype(np.float64), starts)
        as_same = np.append(with_another_same(counts, sums), 1.0)
        as_different = np.append(with_another_same(counts[::-1], (counts - sums)[::-1]), 1.0)
        high = as_same[np.searchsorted(scores, values, side="left")]
        low = 1 - as_different[len(scores) - np.searchsorted(scores, values, side="right")]
        return low, high


def with_another_same(counts: Floats, sums: Floats) -> Floats:
    """Return the isotonic regression at each distinct score (n,) after one more pair of one class was added there.

    Vovk, Petej and Fedorova (2015), algorithms 1 and 2: the greatest convex minorant of the cumulative sums, from which
    one point after the other is taken away, in time proportional to n.

    Args:
        counts: (n,), pairs at each score, ascending.
        sums: (n,), how many of them are of one class.

    Example:
        >>> with_another_same(np.array([1.0, 1.0]), np.array([0.0, 1.0])).tolist()
        [0.5, 1.0]
    """
    n = len(counts)
    points = [
        (-1.0, -1.0),
        *zip(np.cumsum(np.append(0.0, counts)), np.cumsum(np.append(0.0, sums)), strict=True),
    ]
    corners = [points[0], points[1]]
    for point in points[2:]:
        while len(corners) > 1 and _turns_right(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    corners.reverse()
    values = np.empty(n)
    for place in range(n):
        (x, y), (next_x, next_y) = corners[-1], corners[-2]
        values[place] = (next_y - y) / (next_x - x)
        moved = (
            points[place][0] + points[place + 2][0] - points[place + 1][0],
            points[place][1] + points[place + 2][1] - points[place + 1][1],
        )
        points[place + 1] = moved
        if (moved[1] - y) * (next_x - x) >= (next_y - y) * (moved[0] - x):
            continue
        corners.pop()
        while len(corners) > 1 and _turns_right(moved, corners[-1], corners[-2]):
            corners.pop()
        corners.append(moved)
    return values


def _turns_right(first: tuple[float, float], second: tuple[float, float], third: tuple[float, float]) -> bool:
    """Return whether the way from the first point over the second to the third does not turn left."""
    left = (second[0] - first[0]) * (third[1] - second[1]) - (second[1] - first[1]) * (third[0] - second[0])
    return left <= 0
