"""Novelty: how far out a query lies, as the sum of the tails of several distances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laplacian_metric.core.check import Floats

TAIL = 0.05  # the share of the reference beyond which a tail is exponential
OOD_MEAN = 3.0  # the assumed mean of the novelty's tail for OOD queries, where that of known ones is 1
TIED = 1e-9  # sums of logs of shares that are equal but for rounding


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
        return Tail(np.sort(values), *beyond(values, TAIL))

    def __call__(self, values: Floats) -> Floats:
        """Return t(x), (N,): 0 for the least of all, -log .05 at the threshold; NaN stays NaN."""
        at_least = len(self.reference) - np.searchsorted(self.reference, values - TIED, side="left")
        near = np.log(1 / np.maximum(at_least / len(self.reference), TAIL))
        far = -np.log(TAIL) + (values - self.threshold) / self.excess
        return np.where(values > self.threshold, far, np.where(np.isnan(values), np.nan, near))


def beyond(values: Floats, share: float) -> tuple[float, float]:
    """Return the 1 - share quantile of values (N,) and their mean excess beyond it, at least 1e-6.

    Example:
        >>> beyond(np.array([0.0, 1.0, 2.0, 4.0]), 0.5)
        (1.5, 1.5)
    """
    threshold = float(np.quantile(values, 1 - share))
    above = values[values > threshold] - threshold
    return threshold, max(float(above.mean()) if len(above) else 0.0, 1e-6)


@dataclass(frozen=True, eq=False)
class Novelty:
    """The tails of each input, that of their sum, and what counts as known.

    Attributes:
        tails: by name of the input.
        total: the tail of the sum.
        limit, excess: the 1 - alpha quantile of the sum among the reference, and the mean excess beyond it.
    """

    tails: dict[str, Tail]
    total: Tail
    limit: float
    excess: float

    @staticmethod
    def fit(inputs: dict[str, Floats], alpha: float) -> Novelty:
        """Return the novelty by reference queries, each input (N,); the share alpha of them is no longer known."""
        tails = {name: Tail.fit(values) for name, values in inputs.items()}
        total = sum((tail(inputs[name]) for name, tail in tails.items()), np.zeros(1))
        return Novelty(tails, Tail.fit(total), *beyond(total, alpha))

    def parts(self, inputs: dict[str, Floats]) -> Floats:
        """Return what each input adds to the novelty, (Q, number of tails)."""
        return np.column_stack([tail(inputs[name]) for name, tail in self.tails.items()])

    def known(self, novelty: Floats) -> Floats:
        """Return 1 for whatever is no more novel than 1 - alpha of the reference, falling to 0 beyond, (Q,)."""
        falling: Floats = np.exp(-np.maximum(0.0, novelty - self.limit) / self.excess)
        return falling

    def log_known(self, novelty: Floats, share: float | None) -> Floats:
        """Return log P(known | novelty), (Q,), where a share of the queries is expected to be OOD; 0 without one.

        The novelty's tail t is exponential with mean 1 for known queries and is taken to have mean 3 for OOD ones, so
        that the density of t among OOD queries over that among known ones is exp(2t/3)/3.
        """
        if share is None:
            return np.zeros(len(novelty))
        t = self.total(novelty)
        odds = np.log(share / (1 - share) / OOD_MEAN) + (1 - 1 / OOD_MEAN) * t
        logs: Floats = -np.logaddexp(0, odds)
        return logs
