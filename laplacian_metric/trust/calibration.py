"""From inputs to probabilities: the inputs, a logistic with signs, tails of a reference, and the last sigmoid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.neighbours import Place, Surroundings, log_distance
from laplacian_metric.core.second_moment import SecondMoment
from laplacian_metric.core.vector_search import Floats, Vectors

# Each with the sign that its weight may have.
MATCH_INPUTS = {
    "distance in the embedding": -1,
    "distance in the features": -1,
    "LOF in the embedding": -1,
    "LOF in the features": -1,
    "margin in the embedding": 1,
    "margin in the features": 1,
    "kernel vote": 1,
    "feature vote": 1,
}
UNLABELLED_INPUTS = 4  # the first of them need no labels
RISK_INPUT = "risk of the features"  # after the others, where there is a risk head
NOVELTY_INPUTS = (
    "distance in the features",
    "distance to the 10th in the features",
    "LOF in the features",
    "Mahalanobis distance",  # only where training features were given
)
SHARE_LIMIT = 0.001
TINY = 1e-12


def logit(p: Floats) -> Floats:
    """Return log(p/(1 - p)).

    Example:
        >>> logit(np.array([0.5])).tolist()
        [0.0]
    """
    return np.log(p) - np.log1p(-p)


def match_signs(*, labelled: bool = True, risk: bool = False) -> dict[str, int]:
    """Return the names of the match inputs, each with the sign that its weight may have.

    Example:
        >>> list(match_signs(labelled=False, risk=True))[2:]
        ['LOF in the embedding', 'LOF in the features', 'risk of the features']
    """
    names = list(MATCH_INPUTS)[: None if labelled else UNLABELLED_INPUTS]
    return {**{name: MATCH_INPUTS[name] for name in names}, **({RISK_INPUT: -1} if risk else {})}


def match_inputs(around: Surroundings, *, labelled: bool = True, risk: Floats | None = None) -> Floats:
    """Return the eight match inputs (Q, 8) of section 3, or without labels the first four.

    Args:
        around: what surrounds the queries.
        labelled: whether labels count, where the gallery has them.
        risk: of the queries' features, (Q,): a further input.

    Example:
        >>> from laplacian_metric.core.labelled_gallery import LabelledGallery
        >>> gallery = LabelledGallery.of(np.eye(3), ["a", "a", "b"])
        >>> match_inputs(gallery.surroundings(gallery.features, gallery.embeddings)).shape
        (3, 8)
    """
    z, h = around.z, around.h
    columns = [log_distance(z.nearest), log_distance(h.nearest), z.outlier_factor, h.outlier_factor]
    if labelled and around.classes is not None:
        share = np.clip(z.share(around.classes), SHARE_LIMIT, 1 - SHARE_LIMIT)
        columns += [z.margin, h.margin, logit(share), h.vote(around.classes)]
    if risk is not None:
        columns.append(risk)
    return np.stack(columns, axis=1)


def novelty_inputs(h: Place, features: Vectors, moment: SecondMoment | None = None) -> Floats:
    """Return the novelty inputs (Q, 3) of queries, or (Q, 4) with the second moment of training features.

    Args:
        h: what surrounds the queries among the features.
        features: of the queries.
        moment: of training features; its Mahalanobis distance counts relative to |h|^2.
    """
    columns = [log_distance(h.nearest), log_distance(h.tenth), h.outlier_factor]
    if moment is not None:
        columns.append(np.log(moment.distances(features.rows)[0] + TINY) - 2 * np.log(features.norms))
    return np.stack(columns, axis=1)


RIDGE = 1.0
TAIL = 0.05  # the share of the reference beyond which a tail is exponential
NUM_BINS = 10
FOLDS = 5
LARGEST_SLOPE = 20.0
RESAMPLES = 1000


def sigmoid(x: Floats) -> Floats:
    """Return 1/(1 + exp(-x)).

    Example:
        >>> sigmoid(np.array([0.0])).tolist()
        [0.5]
    """
    p: Floats = np.exp(-np.logaddexp(0, -x))
    return p


@dataclass(frozen=True, eq=False)
class Logistic:
    """A logistic of standardised inputs: sigmoid(b + sum_j w_j (x_j - m_j)/s_j); ``center`` m, ``scale`` s, (D,)."""

    center: Floats
    scale: Floats
    weights: Floats
    intercept: float

    @staticmethod
    def fit(inputs: Floats, target: NDArray[np.bool_], signs: NDArray[Any], ridge: float = RIDGE) -> Logistic:
        """Minimise the sum of log losses + ridge/2 |w|^2 where each weight has the sign given, or is 0.

        Args:
            inputs: (N, D).
            target: (N,), what the logistic is to say.
            signs: (D,), 1 or -1.
            ridge: the pull on the weights; the intercept is free.

        Example:
            >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])
            >>> target = np.array([False, True, False, True])
            >>> [Logistic.fit(x, target, np.array([sign])).weights.round(2).tolist() for sign in (1, -1)]
            [[0.45], [0.0]]
        """
        from scipy.optimize import minimize

        center, scale = inputs.mean(axis=0), inputs.std(axis=0)
        scale = np.where(scale > 1e-12, scale, 1.0)
        x = (inputs - center) / scale
        sign = np.where(target, 1.0, -1.0)

        def loss(parameters: Floats) -> tuple[float, Floats]:
            margin = sign * (x @ parameters[:-1] + parameters[-1])
            slope = -sign * np.exp(-np.logaddexp(0, margin))
            weights = parameters[:-1]
            value = np.logaddexp(0, -margin).sum() + ridge / 2 * weights @ weights
            return float(value), np.append(x.T @ slope + ridge * weights, slope.sum())

        bounds = [(0, None) if s > 0 else (None, 0) for s in signs] + [(None, None)]
        settings = {"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9}
        start = np.zeros(x.shape[1] + 1)
        solution = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=settings).x
        return Logistic(center, scale, solution[:-1], float(solution[-1]))

    def contributions(self, inputs: Floats) -> Floats:
        """Return w_j (x_j - m_j)/s_j, (N, D): what each input adds beside the mean query."""
        parts: Floats = self.weights * (inputs - self.center) / self.scale
        return parts

    def logit(self, inputs: Floats) -> Floats:
        """Return the argument of the sigmoid, (N,)."""
        logits: Floats = self.contributions(inputs).sum(axis=1) + self.intercept
        return logits


@dataclass(frozen=True, eq=False)
class Tail:
    """How far out a number lies by reference numbers, ascending (N,): -log of the share that is at least as great.

    Beyond the ``threshold``, their 95 % quantile, it goes on as an exponential with their mean ``excess``.
    """

    reference: Floats
    threshold: float
    excess: float

    @staticmethod
    def fit(values: Floats) -> Tail:
        """Return the tail of reference numbers (N,).

        Example:
            >>> tail = Tail.fit(np.arange(101.0))
            >>> tail(np.array([0.0, 50.0, 95.0, 98.0])).round(3).tolist()
            [0.0, 0.683, 2.823, 3.996]
        """
        threshold, excess = beyond(values, TAIL)
        return Tail(np.sort(values), threshold, excess)

    def __call__(self, values: Floats) -> Floats:
        """Return t(x), (N,): 0 for the least of all, -log .05 at the threshold."""
        at_least = len(self.reference) - np.searchsorted(self.reference, values, side="left")
        near = np.log(1 / np.maximum(at_least / len(self.reference), TAIL))
        far = -np.log(TAIL) + (values - self.threshold) / self.excess
        return np.where(values > self.threshold, far, near)


def beyond(values: Floats, share: float) -> tuple[float, float]:
    """Return the 1 - share quantile of values (N,) and their mean excess beyond it.

    Example:
        >>> beyond(np.array([0.0, 1.0, 2.0, 4.0]), 0.5)
        (1.5, 1.5)
    """
    threshold = float(np.quantile(values, 1 - share))
    above = values[values > threshold] - threshold
    spread = float(values.max() - values.min())
    # Where nothing lies beyond, as among equal values, anything that does is far out.
    excess = float(above.mean()) if len(above) else 1e-3 * spread
    return threshold, max(excess, 1e-6)


def fit_sigmoid(logits: Floats, right: NDArray[np.bool_]) -> tuple[float, float]:
    """Return a and b > 0 of sigmoid(a + b x) by maximum likelihood, with Platt's targets.

    Platt's targets, (n + 1)/(n + 2) for n right answers and 1/(n + 2) for n wrong ones, keep b finite where one
    threshold separates right from wrong.

    Example:
        >>> x = np.linspace(-3, 3, 400)
        >>> right = np.random.default_rng(0).random(400) < sigmoid(1 + 2 * x)
        >>> [round(value) for value in fit_sigmoid(x, right)]
        [1, 2]
    """
    from scipy.optimize import minimize

    num_right, num_wrong = int(right.sum()), int((~right).sum())
    target = np.where(right, (num_right + 1) / (num_right + 2), 1 / (num_wrong + 2))

    def loss(parameters: Floats) -> tuple[float, Floats]:
        x = parameters[0] + parameters[1] * logits
        value = (np.logaddexp(0, x) - target * x).sum()
        slope = sigmoid(x) - target
        return float(value), np.array([slope.sum(), slope @ logits])

    bounds = [(None, None), (1e-3, LARGEST_SLOPE)]
    a, b = minimize(loss, np.array([0.0, 1.0]), jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(a), float(b)


def folds_of(right: NDArray[np.bool_], number: int = FOLDS) -> NDArray[np.int64]:
    """Return a fold for every query (N,), with an even share of right and of wrong answers in each.

    Example:
        >>> folds_of(np.array([True, True, False, False]), 2).tolist()
        [0, 1, 0, 1]
    """
    fold = np.empty(len(right), dtype=np.int64)
    for rows in (np.flatnonzero(right), np.flatnonzero(~right)):
        fold[rows] = np.arange(len(rows)) % number
    return fold


def calibration_error(probability: Floats, right: NDArray[np.bool_]) -> float:
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
    """The calibration error of the probability that is to be expected of new queries, with a 95 % interval.

    Measured by cross-validation on ``queries`` validation queries, and bootstrapped. The error of few queries is too
    great by chance: the upper end is what as many new queries may show, and the lower end has the chance taken off; it
    is 0 where perfectly calibrated probabilities show as great an error in more than 5 % of all cases.
    """

    value: float
    low: float
    high: float
    queries: int

    @staticmethod
    def of(probability: Floats, right: NDArray[np.bool_], resamples: int = RESAMPLES) -> CalibrationError:
        """Return that of probabilities (N,) of queries that they were not fitted on; the draws are seeded.

        Example:
            >>> generator = np.random.default_rng(0)
            >>> p = generator.random(500)
            >>> error = CalibrationError.of(p, generator.random(500) < p)
            >>> 0 <= error.low < 0.05 < error.high < 0.1
            True
        """
        value = calibration_error(probability, right)
        generator = np.random.default_rng(0)
        draws = generator.integers(0, len(right), (resamples, len(right)))
        chance = generator.random((resamples, len(right)))
        errors = np.array([calibration_error(probability[draw], right[draw]) for draw in draws])
        high = float(np.quantile(errors, 0.975))
        low = max(0.0, 2 * value - high)
        if value <= np.quantile(
            [calibration_error(probability, draw < probability) for draw in chance], 0.95
        ):
            low = 0.0
        return CalibrationError(value, low, max(value, high), len(right))

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f}, from {self.queries} queries)"


def discounted(logits: Floats, log_known: Floats) -> Floats:
    """Return the logit of sigmoid(logits) times exp(log_known), (N,).

    Example:
        >>> discounted(np.array([0.0]), np.log([0.5])).round(4).tolist()
        [-1.0986]
    """
    log_p = -np.logaddexp(0, -logits) + log_known
    values: Floats = log_p - np.log(-np.expm1(np.minimum(log_p, -1e-12)))
    return values


class FittedMatch(NamedTuple):
    """What is calibrated on validation queries.

    Attributes:
        logistic: of the match inputs.
        slope: a and b of the last sigmoid, of logits that are discounted by the novelty.
        known_slope: a and b for logits that are not: what a query of a known kind has.
        error: the calibration error to expect of the first.
    """

    logistic: Logistic
    slope: tuple[float, float]
    known_slope: tuple[float, float]
    error: CalibrationError


def fit_match(
    inputs: Floats, log_known: Floats, right: NDArray[np.bool_], names: Mapping[str, int] | None = None
) -> FittedMatch:
    """Fit the logistic of the match, the last sigmoid, and the calibration error to expect.

    The sigmoid sees logits that were cross-validated in five folds, so that it learns how sure the logistic may be.

    Args:
        inputs: the match inputs of validation queries, (N, D).
        log_known: the logarithm of what their novelty leaves of the match, (N,).
        right: whether the nearest item of each is of its class, (N,).
        names: of the inputs, with the sign of each weight; those of `match_signs` by default.
    """
    for kind, number in (("right", int(right.sum())), ("wrong", int((~right).sum()))):
        if number == 0:
            raise ValueError(
                f"none of the {len(right)} nearest items of the validation queries is {kind}: both kinds are needed "
                "to tell them apart. Add queries, harder ones where none is wrong"
            )
    signs, fold = np.array(list((names or match_signs()).values())), folds_of(right)
    crossed, probability = np.empty(len(right)), np.empty(len(right))
    for number in range(fold.max() + 1):
        inside = fold == number
        crossed[inside] = Logistic.fit(inputs[~inside], right[~inside], signs).logit(inputs[inside])
    logits = discounted(crossed, log_known)
    for number in range(fold.max() + 1):
        inside = fold == number
        a, b = fit_sigmoid(logits[~inside], right[~inside])
        probability[inside] = sigmoid(a + b * logits[inside])
    error = CalibrationError.of(probability, right)
    return FittedMatch(
        Logistic.fit(inputs, right, signs), fit_sigmoid(logits, right), fit_sigmoid(crossed, right), error
    )
