"""Logistics with signed weights, the last sigmoid, and the calibration error; numpy only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import Floats

Flags = NDArray[np.bool_]

RIDGE = 1.0
CLIPPED = 0.02  # the share of validation queries beyond each bound of an input
FOLDS = 5
SLOPES = (0.001, 20.0)  # of the last sigmoid
NEWTON_STEPS, TOLERANCE = 200, 1e-10
NUM_BINS = 10
RESAMPLES = 1000
# value, gradient (D,) and Hessian (D, D) of a function at a point (D,)
Function = Callable[[Floats], tuple[float, Floats, Floats]]


def sigmoid(x: Floats) -> Floats:
    """Return 1/(1 + exp(-x)).

    Example:
        >>> sigmoid(np.array([0.0])).tolist()
        [0.5]
    """
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        p: Floats = np.exp(-np.logaddexp(0, -x))
    return p


def logit(p: Floats) -> Floats:
    """Return log(p/(1 - p)).

    Example:
        >>> logit(np.array([0.5])).tolist()
        [0.0]
    """
    return np.log(p) - np.log1p(-p)


def minimise(function: Function, start: Floats, lower: Floats, upper: Floats) -> Floats:
    """Return the minimum (D,) of a convex function between bounds, by projected Newton steps.

    Coordinates at a bound that the gradient pushes beyond it stay there; the others take a Newton step, which is
    shortened until the function falls.
    """
    x = np.clip(start, lower, upper)
    value, gradient, hessian = function(x)
    for _ in range(NEWTON_STEPS):
        held = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
        free = ~held
        if not free.any() or np.abs(gradient[free]).max() < TOLERANCE * max(1.0, abs(value)):
            break
        step = np.zeros_like(x)
        block = hessian[np.ix_(free, free)] + 1e-12 * np.eye(int(free.sum()))
        step[free] = -np.linalg.solve(block, gradient[free])
        length = 1.0
        while length > 1e-12:
            candidate = np.clip(x + length * step, lower, upper)
            lowered, slope, curvature = function(candidate)
            if lowered <= value + 1e-4 * gradient @ (candidate - x):
                break
            length /= 2
        if length <= 1e-12 or np.array_equal(candidate, x):
            break
        x, value, gradient, hessian = candidate, lowered, slope, curvature
    return x


@dataclass(frozen=True, eq=False)
class Logistic:
    """A logistic of clipped, standardised inputs: sigmoid(b + sum_j w_j (clip(x_j) - m_j)/s_j).

    Attributes:
        names: of the inputs, D of them.
        low, high: (D,), between which inputs are clipped.
        center, scale: (D,), m and s.
        weights: (D,).
        intercept: b.
    """

    names: tuple[str, ...]
    low: Floats
    high: Floats
    center: Floats
    scale: Floats
    weights: Floats
    intercept: float

    @staticmethod
    def fit(
        inputs: Floats, target: Flags, signs: dict[str, int], bounds: tuple[Floats, Floats] | None = None
    ) -> Logistic:
        """Minimise the sum of log losses + |w|^2/2 where each weight has the sign of its input, or is 0.

        Args:
            inputs: (N, D).
            target: (N,).
            signs: the name of each input with the sign of its weight, 1 or -1; 0 for any.
            bounds: between which inputs are clipped; by default their 2 % and 98 % quantiles.

        Example:
            >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
            >>> target = np.array([False, True, False, True])
            >>> [Logistic.fit(x, target, {"x": sign}).weights.round(2).tolist() for sign in (1, -1)]
            [[0.44], [0.0]]
        """
        low, high = bounds or (np.quantile(inputs, CLIPPED, axis=0), np.quantile(inputs, 1 - CLIPPED, axis=0))
        clipped = np.clip(inputs, low, high)
        center, scale = clipped.mean(axis=0), clipped.std(axis=0)
        scale = np.where(scale > 1e-12, scale, 1.0)
        x = np.column_stack([(clipped - center) / scale, np.ones(len(clipped))])
        ridge = np.append(np.full(len(center), RIDGE), 0.0)
        sign = np.array(list(signs.values()))
        lower = np.append(np.where(sign > 0, 0.0, -np.inf), -np.inf)
        upper = np.append(np.where(sign < 0, 0.0, np.inf), np.inf)

        def loss(parameters: Floats) -> tuple[float, Floats, Floats]:
            value, gradient, hessian = log_loss(x, target.astype(np.float64), parameters)
            penalty = ridge * parameters
            return value + float(penalty @ parameters) / 2, gradient + penalty, hessian + np.diag(ridge)

        solution = minimise(loss, np.zeros(x.shape[1]), lower, upper)
        return Logistic(tuple(signs), low, high, center, scale, solution[:-1], float(solution[-1]))

    def standardised(self, inputs: Floats) -> Floats:
        """Return (clip(x_j) - m_j)/s_j, (N, D)."""
        x: Floats = (np.clip(inputs, self.low, self.high) - self.center) / self.scale
        return x

    def contributions(self, inputs: Floats) -> Floats:
        """Return what each input adds to the logit beside the mean query, (N, D)."""
        parts: Floats = self.weights * self.standardised(inputs)
        return parts

    def logit(self, inputs: Floats) -> Floats:
        """Return the argument of the sigmoid, (N,)."""
        logits: Floats = self.contributions(inputs).sum(axis=1) + self.intercept
        return logits

    def influence(self, inputs: Floats, target: Flags) -> Floats:
        """Return by how much each row's removal would move a standardised weight most, (N,), by one Newton step."""
        x = np.column_stack([self.standardised(inputs), np.ones(len(inputs))])
        p = sigmoid(self.logit(inputs))
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(np.append(np.full(x.shape[1] - 1, RIDGE), 0.0))
        moved = np.linalg.solve(hessian + 1e-9 * np.eye(x.shape[1]), (x * (p - target)[:, None]).T)
        free = np.append(self.weights != 0, False)
        largest: Floats = np.abs(moved[free]).max(axis=0) if free.any() else np.zeros(len(x))
        return largest


def log_loss(x: Floats, target: Floats, parameters: Floats) -> tuple[float, Floats, Floats]:
    """Return the sum of log losses of sigmoid(x @ parameters) with its gradient (D,) and Hessian (D, D)."""
    logits = x @ parameters
    p = sigmoid(logits)
    value = float((np.logaddexp(0, logits) - target * logits).sum())
    return value, x.T @ (p - target), (x * (p * (1 - p))[:, None]).T @ x


def fit_sigmoid(logits: Floats, right: Flags) -> tuple[float, float]:
    """Return a and b of sigmoid(a + b x) by maximum likelihood, with Platt's targets and b in [.001, 20].

    Platt's targets, (n + 1)/(n + 2) for n right answers and 1/(n + 2) for n wrong ones, keep b finite where one
    threshold separates right from wrong.

    Example:
        >>> x = np.linspace(-3, 3, 400)
        >>> right = np.random.default_rng(0).random(400) < sigmoid(1 + 2 * x)
        >>> [round(value) for value in fit_sigmoid(x, right)]
        [1, 2]
    """
    num_right, num_wrong = int(right.sum()), int((~right).sum())
    target = np.where(right, (num_right + 1) / (num_right + 2), 1 / (num_wrong + 2))
    x = np.column_stack([np.ones(len(logits)), logits])
    lower, upper = np.array([-np.inf, SLOPES[0]]), np.array([np.inf, SLOPES[1]])
    a, b = minimise(lambda parameters: log_loss(x, target, parameters), np.array([0.0, 1.0]), lower, upper)
    return float(a), float(b)


def folds_of(right: Flags, number: int = FOLDS) -> NDArray[np.int64]:
    """Return a fold for every query (N,), with an even share of right and of wrong answers in each.

    Example:
        >>> folds_of(np.array([True, True, False, False]), 2).tolist()
        [0, 1, 0, 1]
    """
    return stratified(right.astype(np.int64), number)


def stratified(classes: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Return a fold for every row (N,), with an even share of each class in each."""
    order = np.argsort(classes, kind="stable")
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    fold = np.empty(len(classes), dtype=np.int64)
    fold[order] = (np.arange(len(classes)) - np.repeat(starts, counts)) % number
    return fold


def cross_validated(inputs: Floats, right: Flags, signs: dict[str, int], fold: NDArray[np.int64]) -> Floats:
    """Return the logits (N,) of logistics that were fitted without the fold of each row, with the same bounds."""
    bounds = np.quantile(inputs, CLIPPED, axis=0), np.quantile(inputs, 1 - CLIPPED, axis=0)
    logits = np.empty(len(right))
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        logits[inside] = Logistic.fit(inputs[~inside], right[~inside], signs, bounds).logit(inputs[inside])
    return logits


def calibration_error(probability: Floats, right: Flags) -> float:
    """Return the expected calibration error of probabilities (N,) in ten bins of equal width.

    Example:
        >>> calibration_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([True, True, True, False]))
        0.0
    """
    bins = np.minimum((probability * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    gap = np.bincount(bins, weights=probability - right, minlength=NUM_BINS)
    return float(np.abs(gap).sum() / len(right))


@dataclass(frozen=True)
class CalibrationError:
    """The calibration error to expect of known queries over the gallery it was measured on, with a 95 % interval.

    Measured by cross-validation and bootstrapped. The error of few queries is too great by chance: the upper end is
    what as many new queries may show, and the lower end has the chance taken off; it is 0 where perfectly calibrated
    probabilities show as great an error in more than 5 % of all cases.

    Attributes:
        value, low, high: the error and its interval.
        queries: how many it was measured on.
        items: the number of items of that gallery.
    """

    value: float
    low: float
    high: float
    queries: int
    items: int

    @staticmethod
    def of(probability: Floats, right: Flags, items: int) -> CalibrationError:
        """Return that of probabilities (N,) of queries that they were not fitted on; the draws are seeded.

        Example:
            >>> generator = np.random.default_rng(0)
            >>> p = generator.random(500)
            >>> error = CalibrationError.of(p, generator.random(500) < p, items=1000)
            >>> 0 <= error.low < 0.05 < error.high < 0.1
            True
        """
        value = calibration_error(probability, right)
        generator = np.random.default_rng(0)
        draws = generator.integers(0, len(right), (RESAMPLES, len(right)))
        chance = generator.random((RESAMPLES, len(right)))
        high = float(
            np.quantile([calibration_error(probability[draw], right[draw]) for draw in draws], 0.975)
        )
        by_chance = [calibration_error(probability, draw < probability) for draw in chance]
        low = 0.0 if value <= np.quantile(by_chance, 0.95) else max(0.0, 2 * value - high)
        return CalibrationError(value, low, max(value, high), len(right), items)

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}, from {self.queries} queries)"


def calibrated(logits: Floats, right: Flags, fold: NDArray[np.int64]) -> Floats:
    """Return probabilities (N,) by sigmoids that were fitted without the fold of each row."""
    probability = np.empty(len(right))
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        a, b = fit_sigmoid(logits[~inside], right[~inside])
        probability[inside] = sigmoid(a + b * logits[inside])
    return probability
