"""Thresholds with a promised error rate, sets that hold a right item, and exact binomial bounds; numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from laplacian_metric.core.check import Floats, check
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.trust.fitting import Flags

# The share of the queries that proposes thresholds. In simulations of 100 to 5000 queries .2 answered more than .1, .3
# and .5, and more than a Bonferroni correction over order statistics, which needs no such share.
EXPLORE = 0.2
SEED = 7919  # not one that data are likely to be made with, which the share would then depend on


class NoGuaranteeError(ValueError):
    """No threshold keeps the promise, or there are too few queries to make it."""


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """Return P(Binomial(trials, probability) <= successes).

    Example:
        >>> round(binomial_tail(1, 2, 0.5), 6)
        0.75
    """
    if successes >= trials:
        return 1.0
    k = np.arange(successes + 1)
    logs = _log_factorials(1 << max(10, trials.bit_length()))
    terms = (
        logs[trials]
        - logs[k]
        - logs[trials - k]
        + k * math.log(probability)
        + (trials - k) * math.log1p(-probability)
    )
    return float(min(1.0, np.exp(terms - terms.max()).sum() * math.exp(terms.max())))


@lru_cache(maxsize=8)
def _log_factorials(most: int) -> Floats:
    """Return log(k!) for k from 0 to ``most``."""
    logs: Floats = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])
    return logs


def upper_bound(successes: int, trials: int, confidence: float) -> float:
    """Return the upper Clopper-Pearson bound of a rate, which is above it with probability ``confidence``.

    Example:
        >>> round(upper_bound(0, 100, 0.9), 4)
        0.0228
    """
    low, high = 0.0, 1.0
    if successes >= trials:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if binomial_tail(successes, trials, middle) > 1 - confidence else (low, middle)
        )
    return high


def needed(error: float, confidence: float) -> int:
    """Return the number of answered queries, none of them wrong, that a promise takes at least.

    Example:
        >>> needed(0.05, 0.9), needed(0.01, 0.9)
        (45, 230)
    """
    return math.ceil(math.log(1 - confidence) / math.log1p(-error) - 1e-12)


@dataclass(frozen=True)
class Guarantee:
    """Among answers with a probability of at least ``threshold`` at most the share ``error`` is wrong.

    That holds with probability ``confidence`` over draws of the queries that it was fitted on, for queries from the
    same distribution. It does not hold for new kinds of queries, nor after the gallery has changed; `Drift` watches.

    Attributes:
        threshold: of the probability.
        error: the share of wrong answers that is promised.
        confidence: of the promise.
        bound: the upper Clopper-Pearson bound of the error at this threshold, at most ``error``.
        tested: queries that the promise rests on, those that proposed thresholds not among them.
        answered: how many of them this threshold answers.
        wrong: how many of these are answered wrongly.
    """

    threshold: float
    error: float
    confidence: float
    bound: float
    tested: int
    answered: int
    wrong: int

    @staticmethod
    def fit(probability: Any, right: Any, *, error: float = 0.1, confidence: float = 0.9) -> Guarantee:
        """Return the threshold that answers most while it keeps the promise (learn, then test).

        A random share of the queries proposes thresholds: first the one that it rejects as bad most firmly, then each
        that answers more. The others test them in that order, each at level 1 - confidence, and stop at the first that
        is not rejected: the number of thresholds costs nothing. A query without a right answer belongs into the queries
        as often as it will be met.

        Args:
            probability: (Q,), of queries that nothing was fitted on; NaN is never answered.
            right: (Q,), whether the answer to each is right.
            error: the share of wrong answers that is allowed.
            confidence: above 0 and below 1.

        Raises:
            NoGuaranteeError: there are too few queries, or no threshold keeps the promise.

        Example:
            >>> p = np.linspace(0, 1, 1000)
            >>> guarantee = Guarantee.fit(p, p > 0.3, error=0.05)
            >>> 0.2 < guarantee.threshold < 0.3
            True
        """
        scores, flags = scores_and_flags("probability", probability, right)
        _check_promise(error, confidence)
        order = np.random.default_rng(SEED).permutation(len(scores))
        proposing, testing = np.split(order, [math.ceil(EXPLORE * len(scores))])
        if len(testing) < needed(error, confidence):
            raise NoGuaranteeError(
                f"queries are too few, {len(scores)}: {needed(error, confidence)} answered ones without a mistake are "
                f"needed beside a fifth that proposes thresholds"
            )
        thresholds = np.unique(scores[proposing][scores[proposing] > -np.inf])[::-1]  # each answers more
        counted = [_counts(scores[proposing], flags[proposing], value) for value in thresholds]
        if counted:
            firmest = int(np.argmin([binomial_tail(wrong, answered, error) for answered, wrong in counted]))
            thresholds = thresholds[firmest:]
        chosen = None
        for value in thresholds:
            answered, wrong = _counts(scores[testing], flags[testing], value)
            if binomial_tail(wrong, answered, error) > 1 - confidence:
                break
            bound = upper_bound(wrong, answered, confidence)
            chosen = Guarantee(float(value), error, confidence, bound, len(testing), answered, wrong)
        if chosen is None:
            raise NoGuaranteeError(
                f"no threshold keeps the error at {error:g} with confidence {confidence:g}: allow a larger error, or "
                "pass more queries"
            )
        return chosen

    def answers(self, probability: Any) -> Flags:
        """Return whether queries of these probabilities are answered."""
        return np.asarray(probability) >= self.threshold


def rejecting(scores: Any, *, rate: float, confidence: float = 0.9) -> float:
    """Return the least threshold that impostors reach at most at a rate, with confidence over draws of them.

    Args:
        scores: (n,), of impostors: queries without a right item, or pairs of different classes.
        rate: false positives among impostors that are allowed.
        confidence: above 0 and below 1.

    Example:
        >>> bool(0.85 < rejecting(np.linspace(0, 1, 1000), rate=0.1) < 0.95)
        True
    """
    values = np.sort(check("scores", scores, "n"))
    _check_promise(rate, confidence)
    allowed = -1
    while allowed + 1 < len(values) and binomial_tail(allowed + 1, len(values), rate) <= 1 - confidence:
        allowed += 1
    if allowed < 0:
        raise NoGuaranteeError(
            f"scores are too few, {len(values)}: {needed(rate, confidence)} impostors are needed"
        )
    # So many are above it; the next float keeps impostors out that are exactly as similar.
    return float(np.nextafter(values[len(values) - 1 - allowed], np.inf))


@dataclass(frozen=True)
class CredibleSets:
    """Sets of neighbours that hold a right item as often as promised: all within a stretch of the nearest distance.

    A split conformal promise: over draws of the queries and one more, with probability ``level``. Queries without a
    right item among the neighbours that are looked at count as missed.

    Attributes:
        level: the promised share.
        stretch: an item belongs to the set where log d - log d_1 is at most this.
        queries: how many it was fitted on.
    """

    level: float
    stretch: float
    queries: int

    @staticmethod
    def fit(neighbours: Neighbours, right: Flags, *, level: float = 0.9) -> CredibleSets:
        """Return the sets of a level.

        Args:
            neighbours: of queries that nothing was fitted on.
            right: (Q, k), whether each neighbour is right.
            level: above 0 and below 1.

        Example:
            >>> distances = np.sort(np.random.default_rng(0).random((200, 20)), axis=1)
            >>> neighbours = Neighbours(np.tile(np.arange(20), (200, 1)), distances)
            >>> right = np.tile(np.arange(20) == 2, (200, 1))
            >>> sets = CredibleSets.fit(neighbours, right, level=0.8)
            >>> bool(sets.of(neighbours)[:, 2].mean() >= 0.8)
            True
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level}: a share above 0 and below 1 is needed")
        beyond = _beyond_nearest(neighbours)
        scores = np.sort(np.where(right.any(axis=1), np.where(right, beyond, np.inf).min(axis=1), np.inf))
        rank = math.ceil((len(scores) + 1) * level - 1e-9)
        if rank > len(scores) or not np.isfinite(scores[rank - 1]):
            raise NoGuaranteeError(
                f"level {level:g} cannot be promised: {np.isinf(scores).sum()} of {len(scores)} queries have no right "
                "item among their neighbours; lower the level, or search for more neighbours"
            )
        return CredibleSets(level, float(scores[rank - 1]), len(scores))

    def of(self, neighbours: Neighbours) -> Flags:
        """Return which neighbours (Q, k) are in the set of each query."""
        inside: Flags = _beyond_nearest(neighbours) <= self.stretch
        return inside


def _beyond_nearest(neighbours: Neighbours) -> Floats:
    """Return log d - log d_1, (Q, k)."""
    logs = np.log(neighbours.distances + 1e-7)
    beyond: Floats = logs - logs.min(axis=1, keepdims=True)
    return beyond


def scores_and_flags(name: str, scores: Any, right: Any) -> tuple[Floats, Flags]:
    """Return scores (Q,), -inf for NaN, and flags (Q,), checked."""
    values, flags = np.array(scores, dtype=np.float64), np.asarray(right)
    if values.ndim != 1 or flags.shape != values.shape or flags.dtype != np.bool_:
        raise ValueError(
            f"{name} has shape {values.shape}, right {flags.shape} of {flags.dtype}: (Q,) and booleans (Q,)"
        )
    return np.where(np.isnan(values), -np.inf, values), flags


def _counts(scores: Floats, right: Flags, threshold: float) -> tuple[int, int]:
    """Return how many queries a threshold answers, and how many of these wrongly."""
    answered = scores >= threshold
    return int(answered.sum()), int((answered & ~right).sum())


def _check_promise(error: float, confidence: float) -> None:
    for name, value in (("error or rate", error), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value}: a number above 0 and below 1 is needed")
