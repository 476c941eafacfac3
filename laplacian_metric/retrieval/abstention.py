"""When to refuse: a threshold on the uncertainty, with a promise about the errors among what is answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The share of the calibration queries that proposes thresholds. In simulations of 100 to 5000 queries 0.2 answered
# more than 0.1, 0.3 and 0.5, and more than the method that needs no such share: Bonferroni over order statistics
# (given the k-th smallest uncertainty, the k - 1 below it are independent draws), on grids of 5 to 50 ranks.
EXPLORE = 0.2
SEED = 7919  # not one that data are likely to be made with, which the share would then depend on


class NoThresholdError(ValueError):
    """No threshold keeps the promise.

    ``error_rate`` is the least one that was reached, ``share`` the share of calibration queries answered there; both
    are None where there were too few queries to look.
    """

    def __init__(self, message: str, error_rate: float | None = None, share: float | None = None) -> None:
        super().__init__(message)
        self.error_rate = error_rate
        self.share = share


@dataclass(frozen=True)
class Threshold:
    """Answer where the uncertainty is at most ``value``: then at most ``alpha`` of the answers are wrong.

    That holds with probability 1 - ``delta`` over calibration sets, for queries that are drawn as these were. It does
    not hold for new kinds of queries, nor after the items have changed; `drift` watches for the former.

    Attributes:
        value: of the uncertainty; below infinity, so that an infinite uncertainty is never answered.
        alpha: the error rate that is promised.
        delta: the probability that the calibration set was so lucky that the promise is wrong.
        bound: upper confidence bound (Clopper-Pearson, one-sided, 1 - delta) of the error rate at this value, at most
            alpha. The promise is alpha: the bound by itself would hold had no other threshold been considered.
        tested: calibration queries that the promise rests on, those that proposed thresholds not among them.
        answered: how many of them this value answers.
        wrong: how many of these answers are wrong.

    Example:
        >>> threshold = Threshold(value=0.5, alpha=0.1, delta=0.1, bound=0.08, tested=100, answered=60, wrong=1)
        >>> threshold.answers([0.2, 0.5, 0.6, math.inf])
        array([ True,  True, False, False])
    """

    value: float
    alpha: float
    delta: float
    bound: float
    tested: int
    answered: int
    wrong: int

    def __post_init__(self) -> None:
        if not self.value < math.inf:
            raise ValueError(
                f"value is {self.value}: a threshold is a number below infinity, which is never answered"
            )
        _check_share("alpha", self.alpha)
        _check_share("delta", self.delta)
        if not 0 <= self.wrong <= self.answered <= self.tested:
            raise ValueError(
                f"wrong is {self.wrong}, answered {self.answered}, tested {self.tested}: each counts some of the next"
            )

    def answers(self, uncertainty: ArrayLike) -> NDArray[np.bool_]:
        """Whether queries of these uncertainties, of any shape, are answered."""
        values = np.asarray(uncertainty, dtype=np.float64)
        _check_numbers(values)
        return np.asarray(values <= self.value)

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON."""
        stored = asdict(self)
        return stored if math.isfinite(self.value) else stored | {"value": str(self.value)}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Threshold:
        """What `to_dict` gave."""
        return Threshold(**{**stored, "value": float(stored["value"])})


def needed(alpha: float, delta: float = 0.1, explore: float = EXPLORE) -> int:
    """The number of calibration queries below which `choose_threshold` promises nothing, even if all were right.

    That is the least n with (1 - alpha)^n <= delta, and the share that proposes thresholds. Where some are not
    answered, or wrongly, it takes more.

    Example:
        >>> needed(0.05, 0.1), needed(0.01, 0.1)
        (57, 288)
    """
    _check_share("alpha", alpha)
    _check_share("delta", delta)
    _check_share("explore", explore)
    right = _needed_right(alpha, delta)
    count = max(right + 1, math.floor(right / (1 - explore)) - 1)
    while count - math.ceil(explore * count) < right:
        count += 1
    return count


def choose_threshold(
    uncertainty: ArrayLike,
    wrong: ArrayLike,
    *,
    alpha: float,
    delta: float = 0.1,
    explore: float = EXPLORE,
    generator: np.random.Generator | None = None,
) -> Threshold:
    """The threshold that answers most while, with probability 1 - delta, at most alpha of the answers are wrong.

    Why it is not simply the largest threshold with an error rate of at most alpha on the calibration set: that one is
    chosen because these queries happened to go well, so its true error rate is above alpha about every second time. A
    confidence bound for each threshold from the same queries does not mend it: that one of many bounds is wrong is more
    likely than that a given one is.

    Here each threshold is a hypothesis, "its error rate is above alpha", and may be used if that is rejected (learn,
    then test). A random share ``explore`` of the calibration set proposes thresholds and their order: first the one
    that this share rejects most firmly, then each that answers more. The other queries test them in that order, each
    at level delta, by the exact binomial tail of the wrong ones among the answered, and stop at the first that is not
    rejected. Which hypothesis is the first true one in that order does not depend on the testing queries, and no true
    one is used unless it is rejected, which has probability delta at most: the number of thresholds costs nothing.

    The promise takes all queries, in calibration and later, as independent draws from one distribution. A query whose
    class is not among the items is wrong by definition and belongs into the calibration set as often as it will be
    met. New kinds of queries, or other items, void the promise; so does drawing again with other generators until the
    threshold pleases.

    Args:
        uncertainty: (N,) of calibration queries, larger where less certain; infinite ones are never answered.
        wrong: (N,), whether the answer of each would be wrong.
        alpha: the error rate among answered queries that is allowed.
        delta: the probability of a calibration set that misleads.
        explore: the share that proposes thresholds.
        generator: draws that share; by default the same draw every time.

    Raises:
        NoThresholdError: there are fewer queries than `needed`, or no threshold is rejected.

    Example:
        >>> uncertainty = np.linspace(0, 1, 1000)
        >>> chosen = choose_threshold(uncertainty, uncertainty > 0.7, alpha=0.05)
        >>> round(chosen.value, 2), chosen.wrong, chosen.answered
        (0.73, 19, 570)
    """
    from scipy.special import betaincinv

    values, mistakes = _calibration_queries(uncertainty, wrong)
    count, least = len(values), needed(alpha, delta, explore)
    if count < least:
        raise NoThresholdError(
            f"{count} calibration queries are too few to promise an error rate of {alpha:g} with probability "
            f"{1 - delta:g}: it takes at least {least}, of which {_needed_right(alpha, delta)} answered, none wrongly, "
            "test what the others propose"
        )
    order = (generator or np.random.default_rng(SEED)).permutation(count)
    proposing, testing = np.split(order, [math.ceil(explore * count)])
    thresholds, answered, errors = _curve(values[proposing], mistakes[proposing])
    if len(thresholds):
        # Where many round to 0, the first of them is as good a start.
        thresholds = thresholds[int(np.argmin(_tail(errors, answered, alpha))) :]
    answered, errors = _counts(values[testing], mistakes[testing], thresholds)
    failed = np.flatnonzero(_tail(errors, answered, alpha) > delta)
    passed = int(failed[0]) if len(failed) else len(thresholds)
    if passed == 0:
        raise _none_passed(values, mistakes, alpha, delta)
    last = passed - 1
    return Threshold(
        value=float(thresholds[last]),
        alpha=float(alpha),
        delta=float(delta),
        # The error rate at which so few wrong answers, or fewer, have probability delta.
        bound=float(betaincinv(errors[last] + 1, answered[last] - errors[last], 1 - delta)),
        tested=len(testing),
        answered=int(answered[last]),
        wrong=int(errors[last]),
    )


def _curve(
    uncertainty: NDArray[np.float64], wrong: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Every finite uncertainty once, how many queries it answers as a threshold, and how many of these wrongly."""
    thresholds = np.unique(uncertainty[uncertainty < math.inf])
    return (thresholds, *_counts(uncertainty, wrong, thresholds))


def _counts(
    uncertainty: NDArray[np.float64], wrong: NDArray[np.bool_], thresholds: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.argsort(uncertainty)
    answered = np.searchsorted(uncertainty[order], thresholds, side="right")
    errors = np.concatenate([[0], np.cumsum(wrong[order])])[answered]
    return answered.astype(np.int64), errors.astype(np.int64)


def _tail(wrong: NDArray[np.int64], answered: NDArray[np.int64], alpha: float) -> NDArray[np.float64]:
    """The probability of so few wrong answers, or fewer, at an error rate of alpha: a p-value for "it is larger"."""
    from scipy.special import betainc

    # P(Binomial(n, p) <= k) = I_{1 - p}(n - k, k + 1); all wrong, or none answered, says nothing.
    right = answered - wrong
    tail: NDArray[np.float64] = np.where(right > 0, betainc(np.maximum(right, 1), wrong + 1, 1 - alpha), 1.0)
    return tail


def _needed_right(alpha: float, delta: float) -> int:
    """The least number of answers, none of them wrong, that rejects an error rate above alpha."""
    count = max(1, math.floor(math.log(delta) / math.log1p(-alpha)) - 1)
    # By the test itself, so that both round alike.
    while _tail(np.array([0]), np.array([count]), alpha)[0] > delta:
        count += 1
    return count


def _none_passed(
    uncertainty: NDArray[np.float64], wrong: NDArray[np.bool_], alpha: float, delta: float
) -> NoThresholdError:
    said = (
        f"no threshold on the uncertainty keeps the error rate at {alpha:g} with probability {1 - delta:g}: "
    )
    _, answered, errors = _curve(uncertainty, wrong)
    # One or two queries are easily all right.
    enough = answered >= _needed_right(alpha, delta)
    if not enough.any():
        finite = int(answered[-1]) if len(answered) else 0
        return NoThresholdError(
            said
            + f"only {finite} of {len(uncertainty)} calibration queries have a finite uncertainty; calibrate with more"
        )
    rates = errors[enough] / answered[enough]
    at = int(np.argmin(rates))
    rate, share = float(rates[at]), float(answered[enough][at] / len(uncertainty))
    return NoThresholdError(
        said
        + f"the least that was reached is {rate:.3g}, where {share:.1%} of the queries are answered; allow a "
        "larger alpha or delta, or calibrate with more queries",
        rate,
        share,
    )


def _calibration_queries(
    uncertainty: ArrayLike, wrong: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, mistakes = np.asarray(uncertainty, dtype=np.float64), np.asarray(wrong)
    if values.ndim != 1:
        raise ValueError(
            f"uncertainty has shape {values.shape}, one number for each calibration query is needed"
        )
    _check_numbers(values)
    if mistakes.dtype != np.bool_ and mistakes.size:
        raise TypeError(
            f"wrong has dtype {mistakes.dtype}, booleans are needed: True where the answer is wrong"
        )
    if mistakes.shape != values.shape:
        raise ValueError(f"wrong has shape {mistakes.shape} for {len(values)} uncertainties")
    return values, mistakes.astype(np.bool_)


def _check_numbers(uncertainty: NDArray[np.float64]) -> None:
    missing = np.flatnonzero(np.isnan(uncertainty))
    if len(missing):
        raise ValueError(
            f"uncertainty is NaN at index {missing[0]}: pass infinity for a query that is never to be answered"
        )


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value}: it is a share strictly between 0 and 1")
