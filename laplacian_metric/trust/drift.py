"""Whether queries are still like those of the calibration: by their novelty, and by their labels where these come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from laplacian_metric.core.check import Floats, check

# Bets on ranks of new novelties among all: Beta densities, which average to 1 over uniform ranks. Higher or lower, by
# a little, by much, for few queries only, and closer together or farther apart.
BETS = ((1.25, 0.8), (0.8, 1.25), (2.0, 0.5), (0.5, 2.0), (1.0, 0.5), (0.5, 1.0), (0.5, 0.5), (2.0, 2.0))
START = np.array([0.5, *(0.5 / len(BETS) for _ in BETS)])  # half of the capital does not bet
# The share 1/(t + PATIENCE) of the capital is dealt anew after query t, for changes that come late; that it shrinks
# keeps the loss without a change to about sqrt(t).
PATIENCE = 100
STAKES = np.linspace(0.05, 0.95, 10)  # of the bets on wrong answers
SEED = 7919


@dataclass(frozen=True)
class DriftReport:
    """What a monitor knows.

    Attributes:
        alarm: whether the capital of the bets has ever reached 1/false_alarm; it stays raised.
        alarm_at: after how many queries it was raised; None without an alarm.
        seen: queries so far.
        log10_capital: of the bets; 0 at the start.
    """

    alarm: bool
    alarm_at: int | None
    seen: int
    log10_capital: float


class _Bets:
    """Capital that is never expected to grow without a change, and the alarm."""

    def __init__(self, false_alarm: float) -> None:
        if not 0 < false_alarm < 1:
            raise ValueError(f"false_alarm is {false_alarm}: a probability above 0 and below 1 is needed")
        self.least = -math.log10(false_alarm)
        self.seen, self.log10 = 0, 0.0
        self.alarm_at: int | None = None

    def won(self, factor: float) -> None:
        """Take note of one query, by what the capital was multiplied with."""
        self.seen += 1
        self.log10 += math.log10(factor)
        if self.alarm_at is None and self.log10 >= self.least:
            self.alarm_at = self.seen

    def report(self) -> DriftReport:
        """Return what is known now."""
        return DriftReport(self.alarm_at is not None, self.alarm_at, self.seen, self.log10)


class Drift:
    """Watches the novelty of a stream of queries: a conformal test martingale.

    Each novelty is ranked among those of the calibration and of all queries before it, equal ones in random order. As
    long as queries are exchangeable these ranks are uniform and no bet on them can be expected to win; by Ville's
    inequality the alarm is ever raised with probability false_alarm at most, however often one looks. An alarm says
    that promises no longer hold: calibrate on new queries. No alarm does not say that they hold.

    Args:
        novelty: (n,), of the calibration queries, such as ``trust.calibration.totals``.
        false_alarm: the probability of an alarm without a change.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> drift = Drift(generator.exponential(size=500))
        >>> drift.update(generator.exponential(size=300)).alarm
        False
        >>> drift.update(generator.exponential(4, size=100)).alarm
        True
    """

    def __init__(self, novelty: Any, *, false_alarm: float = 0.05) -> None:
        self._sorted = np.sort(check("novelty", novelty, "n").astype(np.float64))
        self._capital = START.copy()
        self._bets = _Bets(false_alarm)
        self._random = np.random.default_rng(SEED)

    def update(self, novelty: Any) -> DriftReport:
        """Take note of queries (m,), in the order in which they came, such as ``answer.novelty``."""
        values = np.asarray(novelty, dtype=np.float64)
        if len(values):
            check("novelty", values, "m")
        for value in values:
            left, right = (
                np.searchsorted(self._sorted, value, "left"),
                np.searchsorted(self._sorted, value, "right"),
            )
            rank = (left + self._random.random() * (right - left + 1)) / (len(self._sorted) + 1)
            self._sorted = np.insert(self._sorted, left, value)
            self._bet(float(np.clip(rank, 2.0**-53, 1 - 2.0**-53)))
        return self._bets.report()

    def _bet(self, rank: float) -> None:
        won = self._capital * payoffs(rank)
        total = float(won.sum())
        self._bets.won(total)
        dealt = 1 / (self._bets.seen + PATIENCE)
        self._capital = (1 - dealt) * won / total + dealt * START


class RiskDrift:
    """Watches accepted answers whose truth becomes known: an alarm says that more than a share is wrong.

    Bets on wrong answers at ten stakes; while the error rate is at most ``error`` their capital is not expected to
    grow, so that an alarm is false with probability false_alarm at most, however often one looks.

    Args:
        error: the share of wrong answers that was promised.
        false_alarm: the probability of an alarm while the promise holds.

    Example:
        >>> risk = RiskDrift(error=0.1)
        >>> risk.update(np.arange(200) % 20 != 0).alarm, risk.update(np.arange(200) % 3 != 0).alarm
        (False, True)
    """

    def __init__(self, error: float, *, false_alarm: float = 0.05) -> None:
        if not 0 < error < 1:
            raise ValueError(f"error is {error}: a share above 0 and below 1 is needed")
        self.error = error
        self._capital = np.full(len(STAKES), 1 / len(STAKES))
        self._bets = _Bets(false_alarm)

    def update(self, right: Any) -> DriftReport:
        """Take note of accepted answers (m,): whether each was right."""
        for flag in np.asarray(right, dtype=bool):
            # On average 1 at this error rate, and less below it; a stake of 1 would lose everything at a right answer.
            won = self._capital * (1 + STAKES * (float(not flag) - self.error) / self.error)
            total = float(won.sum())
            self._bets.won(total)
            self._capital = won / total
        return self._bets.report()


def payoffs(rank: float) -> Floats:
    """Return what not betting and each bet pay at a rank, (1 + bets,)."""
    scale = [math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) for a, b in BETS]
    logs = [
        (a - 1) * math.log(rank) + (b - 1) * math.log1p(-rank) + s
        for (a, b), s in zip(BETS, scale, strict=True)
    ]
    return np.concatenate([[1.0], np.exp(logs)])
