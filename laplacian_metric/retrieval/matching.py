"""The probability that a query and an item are of one class, calibrated on pairs whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

NUM_BINS = 10
STEPS = 100


@dataclass(frozen=True)
class Reliability:
    """What happened at each probability that was told: ten bins of equal width, empty ones without a number.

    ``count``, ``probability`` and ``matched`` (10,): pairs in each, their mean probability, the share that matched.
    """

    count: tuple[int, ...]
    probability: tuple[float | None, ...]
    matched: tuple[float | None, ...]

    @staticmethod
    def of(probability: ArrayLike, same: ArrayLike) -> Reliability:
        """From pairs (P,) with their probability and whether they match.

        Example:
            >>> table = Reliability.of([0.91, 0.95, 0.92, 0.1], [True, True, False, False])
            >>> table.count[9], table.matched[9], round(table.error, 3)
            (3, 0.6666666666666666, 0.22)
        """
        predicted = _finite("probability", probability)
        if not ((predicted >= 0) & (predicted <= 1)).all():
            raise ValueError("probability has entries outside of [0, 1]: pass probabilities, not scores")
        matches = _binary("same", same, len(predicted))
        bins = np.minimum((NUM_BINS * predicted).astype(np.int64), NUM_BINS - 1)
        count = np.bincount(bins, minlength=NUM_BINS)
        sums = [np.bincount(bins, weights, NUM_BINS) for weights in (predicted, matches.astype(np.float64))]
        means = [
            tuple(float(s / n) if n else None for s, n in zip(total, count, strict=True)) for total in sums
        ]
        return Reliability(tuple(int(n) for n in count), *means)

    @property
    def error(self) -> float:
        """The expected calibration error: the gap of each bin, weighted by its share of the pairs."""
        rows = zip(self.count, self.probability, self.matched, strict=True)
        gaps = [n * abs(p - m) for n, p, m in rows if p is not None and m is not None]
        return sum(gaps) / max(sum(self.count), 1)


@dataclass(frozen=True)
class MatchProbability:
    """A logistic of the log expected likelihood of two distributions: sigmoid(slope * likelihood + intercept).

    ``num_pairs`` and ``num_matching`` say what it was fitted to, ``loss`` its mean negative log-likelihood there.
    The probability is that of pairs as they were calibrated on: queries with their nearest items, say, among which
    more match than among all pairs.

    Example:
        >>> fitted = MatchProbability.fit([8.0, 5.0, 2.0, 3.0, -4.0, -9.0], [True, True, False, True, False, False])
        >>> fitted.probability([8.0, -9.0]).round(2)
        array([0.8 , 0.12])
    """

    slope: float
    intercept: float
    num_pairs: int
    num_matching: int
    loss: float

    def __post_init__(self) -> None:
        if not (self.slope >= 0 and math.isfinite(self.slope) and math.isfinite(self.intercept)):
            raise ValueError(
                f"slope is {self.slope} and intercept {self.intercept}: finite numbers are needed, the slope at least "
                "0, because a pair that is likelier the same is not less probably so"
            )

    @staticmethod
    def fit(log_likelihood: ArrayLike, same: ArrayLike) -> MatchProbability:
        """By maximum likelihood, by Newton's method in two dimensions.

        The targets are a hair away from 0 and 1, as if one pair of each kind had been seen beforehand: otherwise pairs
        that are told apart without a mistake would make the slope infinite.

        Args:
            log_likelihood: (P,), of `log_expected_likelihood`.
            same: (P,), whether the two are of one class. Pairs of both kinds are needed.
        """
        x = _finite("log_likelihood", log_likelihood)
        matches = _binary("same", same, len(x))
        positives, negatives = int(matches.sum()), int((~matches).sum())
        if positives == 0 or negatives == 0:
            kind = "matches" if positives == 0 else "differs"
            raise ValueError(
                f"none of the {len(x)} pairs {kind}: a match probability is calibrated on pairs of both kinds"
            )
        target = np.where(matches, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        center, scale = float(x.mean()), float(x.std()) or 1.0
        slope, intercept = _logistic((x - center) / scale, target)
        slope, intercept = slope / scale, intercept - slope * center / scale
        loss = float(np.mean(np.logaddexp(0, np.where(matches, -1, 1) * (slope * x + intercept))))
        return MatchProbability(slope, intercept, len(x), positives, loss)

    def probability(self, log_likelihood: ArrayLike) -> NDArray[np.float64]:
        """Of pairs of any shape; a pair of distributions that know nothing has log likelihood 0."""
        at = np.asarray(log_likelihood, dtype=np.float64)
        # 0 * inf is no number; a slope of 0 tells every pair the same.
        return _sigmoid((self.slope * at if self.slope else 0 * np.sign(at)) + self.intercept)

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> MatchProbability:
        """What `to_dict` gave."""
        return MatchProbability(**stored)


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1/(1 + e^-x) without overflow. Scipy's is as good, and takes a third of the time in which a query is answered."""
    sigmoid: NDArray[np.float64] = np.exp(-np.logaddexp(0, -x))
    return sigmoid


def _logistic(x: NDArray[np.float64], target: NDArray[np.float64]) -> tuple[float, float]:
    """Slope, at least 0, and intercept of least cross entropy."""
    design = np.stack([x, np.ones_like(x)])
    mean = float(target.mean())
    alone = np.array([0.0, math.log(mean / (1 - mean))])  # the best without a slope
    parameters = alone
    loss = _cross_entropy(parameters, design, target)
    for _ in range(STEPS):
        predicted = _sigmoid(parameters @ design)
        gradient = design @ (predicted - target)
        hessian = (design * (predicted * (1 - predicted))) @ design.T
        step = np.linalg.solve(hessian + 1e-12 * np.trace(hessian) * np.eye(2), gradient)
        share, best = 1.0, loss
        while (loss := _cross_entropy(parameters - share * step, design, target)) > best and share > 1e-10:
            share /= 2
        if loss >= best:
            break
        parameters = parameters - share * step
    return (float(parameters[0]), float(parameters[1])) if parameters[0] > 0 else (0.0, float(alone[1]))


def _cross_entropy(
    at: NDArray[np.float64], design: NDArray[np.float64], target: NDArray[np.float64]
) -> float:
    logit = at @ design
    return float(np.sum(np.logaddexp(0, logit) - target * logit))


def _finite(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(
            f"{name} has shape {array.shape}, one number for each of at least one pair is needed"
        )
    if not np.isfinite(array).all():
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name} has the value {array[where]} at index {where}: finite numbers are needed")
    return array


def _binary(name: str, values: ArrayLike, count: int) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype != np.bool_:
        raise TypeError(
            f"{name} has dtype {array.dtype}, booleans are needed: True where the two are of one class"
        )
    if array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape} for {count} pairs")
    return array
