"""How unlike everything seen a query is: the tails of its features' distances among known queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from laplacian_metric.core.second_moment import SecondMoment
from laplacian_metric.core.vector_search import Floats, Vectors
from laplacian_metric.trust.calibration import TAIL, Tail, beyond, logit

SOFT_SHARE = 0.02  # of the known queries, beyond which the probability falls by the novelty
OOD_TAIL = 3.0  # how many times as long the tail of OOD queries' novelty is taken to be as that of known ones
MOST_REFERENCE = 2000  # items of a gallery that serve as known queries


@dataclass(frozen=True, eq=False)
class Novelty:
    """What counts as known, and how far from it a query is.

    Attributes:
        tails: of each of `NOVELTY_INPUTS` among known queries, with the last only where there is a moment.
        threshold, excess: of novelty: the quantile beyond which a query is not quite known, and the mean excess.
        soft_threshold, soft_excess: the same for the 98 % quantile.
        moment: the second moment of training features, where there are any.
        ratio: s and b of the ratio r = exp(n/s + b) between the densities of the novelty n among OOD and among known
            queries; None in folders of earlier versions.
    """

    tails: tuple[Tail, ...]
    threshold: float
    excess: float
    soft_threshold: float
    soft_excess: float
    moment: SecondMoment | None = None
    ratio: tuple[float, float] | None = None

    @staticmethod
    def fit(inputs: Floats, alpha: float, moment: SecondMoment | None = None) -> Novelty:
        """Fit on known queries alone.

        Args:
            inputs: their `novelty_inputs`, (N, 3), or (N, 4) with a moment.
            alpha: the share of them that may count as not quite known.
            moment: of training features, or None.

        Example:
            >>> inputs = np.random.default_rng(0).standard_normal((400, 3))
            >>> novelty = Novelty.fit(inputs, alpha=0.05)
            >>> float((novelty.known(novelty.parts(inputs).sum(axis=1)) < 1).mean())
            0.05
        """
        tails = tuple(Tail.fit(column) for column in inputs.T)
        total = _parts(tails, inputs).sum(axis=1)
        return Novelty(tails, *beyond(total, alpha), *beyond(total, SOFT_SHARE), moment, density_ratio(total))

    def parts(self, inputs: Floats) -> Floats:
        """Return the tails of queries (Q, 3 or 4); their sum is the novelty."""
        return _parts(self.tails, inputs)

    def known(self, novelty: Floats) -> Floats:
        """Return 1 for whatever is no more novel than 1 - alpha of known queries, falling to 0 beyond, (Q,)."""
        known: Floats = np.exp(-np.maximum(0, novelty - self.threshold) / self.excess)
        return known

    def log_soft_known(self, novelty: Floats) -> Floats:
        """Return the logarithm of 1/(1 + exp((novelty - q2)/e2)), (Q,)."""
        log_known: Floats = -np.logaddexp(0, (novelty - self.soft_threshold) / self.soft_excess)
        return log_known

    def log_known(self, novelty: Floats, ood: float) -> Floats:
        """Return the logarithm of the probability that a query is known, (Q,).

        By Bayes' rule it is (1 - ood)/(1 - ood + ood r(novelty)), with the ratio r of `density_ratio`.

        Args:
            novelty: (Q,).
            ood: the share of OOD queries that is expected.
        """
        assert self.ratio is not None  # see `Trust.expecting`
        scale, log_mean = self.ratio
        log_known: Floats = -np.logaddexp(0, logit(np.float64(ood)) + novelty / scale + log_mean)
        return log_known


def density_ratio(novelty: Floats) -> tuple[float, float]:
    """Return s and b of r(n) = exp(n/s + b), whose mean over the novelty (N,) of known queries is 1.

    r is a ratio of densities therefore. Beyond their 95 % quantile the novelty of known queries falls about as
    exp(-n/e), with the mean excess e; s is such that r(n) exp(-n/e) falls as exp(-n/(3 e)).

    Example:
        >>> s, b = density_ratio(np.array([0.0, 0.0, 3.0]))
        >>> bool(np.isclose(np.exp(np.array([0.0, 0.0, 3.0]) / s + b).mean(), 1))
        True
    """
    scale = beyond(novelty, TAIL)[1] / (1 - 1 / OOD_TAIL)
    return scale, float(np.log(len(novelty)) - np.logaddexp.reduce(novelty / scale))


def moment_of(training_h: Any, width: int) -> SecondMoment | None:
    """Return the second moment of training features of this width, None for None."""
    if training_h is None:
        return None
    training = Vectors.of("training_h", training_h)
    if training.rows.shape[1] != width:
        raise ValueError(f"training_h has {training.rows.shape[1]} columns, the gallery has {width}")
    return SecondMoment.of(training.rows)


def _parts(tails: tuple[Tail, ...], inputs: Floats) -> Floats:
    return np.stack([tail(column) for tail, column in zip(tails, inputs.T, strict=True)], axis=1)
