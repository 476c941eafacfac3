"""Whether queries are still like those of the calibration, as far as their concentrations can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# A concentration counts up to this share of an octave, 0.2 to 0.4 %, so that the state of a monitor does not grow with
# every query. The grid must not depend on the data, and equal ranks are drawn at random: the guarantee is untouched.
STEPS_PER_OCTAVE = 256
# Bets on ranks of new queries among all: Beta densities, which average to 1 over uniform ranks. Lower or higher, by a
# little, by much, and for few queries only; then farther apart, and closer together.
BETS = ((0.8, 1.25), (1.25, 0.8), (0.5, 2.0), (2.0, 0.5), (0.5, 1.0), (1.0, 0.5), (0.5, 0.5), (2.0, 2.0))
START = np.array([0.5, *(0.5 / len(BETS) for _ in BETS)])  # half of the capital does not bet
# The share 1/(t + PATIENCE) of the capital is dealt anew after query t, for changes that come late. That it shrinks
# keeps the loss from bets without a change to about sqrt(t), where a fixed share would lose everything in the end.
PATIENCE = 100
RECENT = 200  # queries in the median of what came last
CHUNK = 256  # queries that are compared with each other at once
SEED = (
    7919  # not one that data are likely to be made with, which would then depend on the order of equal ranks
)


@dataclass(frozen=True)
class Comparison:
    """One batch of concentrations against those of the calibration.

    Attributes:
        statistic: of Kolmogorov and Smirnov, the largest difference of the two distribution functions: the share of
            queries, at least, that would have to change for the two to be alike. The size of the effect.
        p_value: the probability of such a difference, or a larger one, between two samples of one distribution; too
            large where values are equal. For one look, not for looking again and again: see `DriftMonitor`.
        lower: the probability that a new concentration is below one of the calibration, equal ones counting half: 1/2
            without a shift, near 1 where new queries are much less certain.
        median_calibration, median_new: of the concentrations.
        calibration, new: how many there were.
    """

    statistic: float
    p_value: float
    lower: float
    median_calibration: float
    median_new: float
    calibration: int
    new: int

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON."""
        return {name: _to_json(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Comparison:
        """What `to_dict` gave."""
        return Comparison(**{name: _from_json(value) for name, value in stored.items()})


@dataclass(frozen=True)
class DriftReport:
    """What a monitor knows after the queries that it has seen.

    Attributes:
        log10_martingale: the decimal logarithm of the capital of the bets; 0 at the start.
        log10_peak: the largest that it has been.
        alarm: whether the peak has reached 1/false_alarm. It stays raised.
        alarm_at: how many queries had been seen when it was raised.
        seen: queries so far, without those of the calibration.
        median_calibration: of the concentrations, to 0.4 %.
        median_recent: of the last 200 queries; None before the first.
    """

    log10_martingale: float
    log10_peak: float
    alarm: bool
    alarm_at: int | None
    seen: int
    median_calibration: float
    median_recent: float | None

    @property
    def median_shift(self) -> float | None:
        """The median of recent queries over that of the calibration: below 1 where they are less certain.

        None before the first query, and where only the latter is 0.
        """
        if self.median_recent is None:
            return None
        if self.median_recent == self.median_calibration:
            return 1.0
        if self.median_calibration == 0:
            return None
        return self.median_recent / self.median_calibration

    def to_dict(self) -> dict[str, Any]:
        """As values of JSON."""
        return {name: _to_json(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> DriftReport:
        """What `to_dict` gave."""
        return DriftReport(**{name: _from_json(value) for name, value in stored.items()})


def compare(kappa_calibration: ArrayLike, kappa_new: ArrayLike) -> Comparison:
    """The two-sample test of Kolmogorov and Smirnov, exact for small samples.

    Args:
        kappa_calibration: (n,) concentrations, from 0 to infinity.
        kappa_new: (m,).

    Example:
        >>> report = compare([10, 11, 12, 13, 14, 15], [1, 2, 3, 12])
        >>> report.statistic, round(report.p_value, 3), report.lower
        (0.75, 0.095, 0.8958333333333334)
    """
    from scipy.stats import ks_2samp

    old, new = (
        _concentrations("kappa_calibration", kappa_calibration),
        _concentrations("kappa_new", kappa_new),
    )
    for name, values in (("kappa_calibration", old), ("kappa_new", new)):
        if len(values) == 0:
            raise ValueError(f"{name} is empty: at least one query is needed on both sides")
    tested = ks_2samp(old, new, method="exact" if len(old) * len(new) <= 10**6 else "asymp")
    ordered = np.sort(old)
    above = len(old) - np.searchsorted(ordered, new, side="right")
    equal = len(old) - above - np.searchsorted(ordered, new, side="left")
    return Comparison(
        statistic=float(tested.statistic),
        p_value=float(tested.pvalue),
        lower=float(np.mean((above + equal / 2) / len(old))),
        median_calibration=_median(old),
        median_new=_median(new),
        calibration=len(old),
        new=len(new),
    )


class DriftMonitor:
    """Watches a stream of queries and raises an alarm when their concentrations change: a conformal test martingale.

    Each new concentration is ranked among those of the calibration and of all queries before it, equal ones in random
    order. As long as queries are exchangeable with the calibration, these ranks are independent and uniform, and no bet
    on them can be expected to win: the capital of a set of bets is a martingale that starts at 1. By Ville's inequality
    it ever reaches 1/false_alarm with probability false_alarm at most, however often one looks and however long the
    stream is. If ranks come out too low, too high, too far apart or too close together, it grows with every query.

    In simulations with 1000 calibration queries and a false alarm of 0.01, a shift of log kappa by one standard
    deviation was seen after 13 queries (median; 30 at most in nine of ten streams), by half of one after 70 (130).
    After 2000 good queries these took 30 (50) and 120 (170). Shifts by a quarter were often missed: new queries join
    those that later ones are compared with, so what is not found within about as many queries as there were before
    may never be. Hence `compare` batches too, and calibrate anew from time to time.

    What it means for promises: those of `Threshold` and `CredibleCaps` are for queries that are exchangeable with the
    calibration set. An alarm says that this is over, whatever the reason: calibrate on new queries, and make a new
    monitor of these. It does not say that answers have become worse; with higher concentrations they may be better. And
    no alarm does not say that the promise holds: the monitor sees only changes that move kappa, not queries that the
    network is confidently wrong about.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> monitor = DriftMonitor(generator.gamma(5, 20, 500), false_alarm=0.01)
        >>> monitor.update(generator.gamma(5, 20, 300)).alarm
        False
        >>> report = monitor.update(generator.gamma(5, 10, 100))
        >>> report.alarm, report.alarm_at, report.seen
        (True, 319, 400)
    """

    def __init__(
        self,
        kappas: ArrayLike,
        *,
        false_alarm: float = 0.01,
        generator: np.random.Generator | None = None,
    ) -> None:
        """
        Args:
            kappas: (n,) concentrations of the calibration queries, from 0 to infinity.
            false_alarm: the probability that it ever raises the alarm without a change.
            generator: seeds the order of equal ranks; by default the same one every time.
        """
        calibration = _rounded(_concentrations("kappas", kappas))
        if len(calibration) == 0:
            raise ValueError("kappas is empty: a monitor compares with at least one calibration query")
        if not 0 < false_alarm < 1:
            raise ValueError(f"false_alarm is {false_alarm}: it is a probability strictly between 0 and 1")
        self.false_alarm = float(false_alarm)
        self._values, counts = np.unique(calibration, return_counts=True)
        self._counts = counts.astype(np.int64)
        self._median = _median(calibration)
        self._capital = START.copy()  # shares of it, one for each bet
        self._log10 = 0.0
        self._peak = 0.0
        self._alarm_at: int | None = None
        self._seen = 0
        self._recent: list[float] = []
        seed = (generator or np.random.default_rng(SEED)).integers(2**63)
        self._random = np.random.Generator(np.random.PCG64(int(seed)))

    def update(self, kappas: ArrayLike) -> DriftReport:
        """Take note of queries (m,), in the order in which they came; how they are cut into batches does not matter.

        Nothing is taken note of if any of them is not a concentration.
        """
        new = _rounded(_concentrations("kappas", kappas))
        for first in range(0, len(new), CHUNK):
            chunk = new[first : first + CHUNK]
            self._bet(self._ranks(chunk))
            self._values, self._counts = _merged(self._values, self._counts, chunk)
        self._recent = [*self._recent, *new[-RECENT:].tolist()][-RECENT:]
        return DriftReport(
            log10_martingale=self._log10,
            log10_peak=self._peak,
            alarm=self._alarm_at is not None,
            alarm_at=self._alarm_at,
            seen=self._seen,
            median_calibration=self._median,
            median_recent=_median(np.array(self._recent)) if self._recent else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Its whole state as values of JSON: a monitor made of it goes on as this one would have."""
        return {
            "false_alarm": self.false_alarm,
            "values": [_to_json(value) for value in self._values.tolist()],
            "counts": self._counts.tolist(),
            "median": _to_json(self._median),
            "capital": self._capital.tolist(),
            "log10": self._log10,
            "peak": self._peak,
            "alarm_at": self._alarm_at,
            "seen": self._seen,
            "recent": [_to_json(value) for value in self._recent],
            "random": self._random.bit_generator.state,
        }

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> DriftMonitor:
        """What `to_dict` gave."""
        values = [_from_json(value) for value in stored["values"]]
        if len(values) != len(stored["counts"]) or len(stored["capital"]) != len(START):
            raise ValueError(
                f"stored has {len(values)} values, {len(stored['counts'])} counts and {len(stored['capital'])} bets, "
                f"as many counts as values and {len(START)} bets are needed: it is damaged, or of another version"
            )
        monitor = DriftMonitor(values, false_alarm=stored["false_alarm"])
        monitor._values = np.array(values, dtype=np.float64)
        monitor._counts = np.array(stored["counts"], dtype=np.int64)
        monitor._median = _from_json(stored["median"])
        monitor._capital = np.array(stored["capital"], dtype=np.float64)
        monitor._log10, monitor._peak = float(stored["log10"]), float(stored["peak"])
        monitor._alarm_at, monitor._seen = stored["alarm_at"], int(stored["seen"])
        monitor._recent = [_from_json(value) for value in stored["recent"]]
        monitor._random.bit_generator.state = stored["random"]
        return monitor

    def _ranks(self, new: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of all values so far, its own among them, that are below each new one: uniform on (0, 1)."""
        below = np.concatenate([[0], np.cumsum(self._counts)])
        left = below[np.searchsorted(self._values, new, side="left")]
        equal = below[np.searchsorted(self._values, new, side="right")] - left
        earlier = np.tri(len(new), dtype=bool)
        left = left + ((new < new[:, None]) & earlier).sum(1)
        equal = equal + ((new == new[:, None]) & earlier).sum(1)  # with itself
        total = below[-1] + np.arange(1, len(new) + 1)
        shares = (left + self._random.random(len(new)) * equal) / total
        return shares.clip(2.0**-54, 1 - 2.0**-53)  # type: ignore[no-any-return]  # bets have no limit at the ends

    def _bet(self, ranks: NDArray[np.float64]) -> None:
        factors = _payoffs(ranks)
        for factor in factors:
            won = self._capital * factor
            total = float(won.sum())
            self._seen += 1
            self._log10 += math.log10(total)
            dealt = 1 / (self._seen + PATIENCE)
            self._capital = (1 - dealt) * (won / total) + dealt * START
            self._peak = max(self._peak, self._log10)
            if self._alarm_at is None and self._log10 >= -math.log10(self.false_alarm):
                self._alarm_at = self._seen


def _payoffs(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each bet pays at each rank (m,), for not betting first: (m, 1 + bets)."""
    low, high = np.array(BETS).T
    scale = np.array([math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) for a, b in BETS])
    logs = (low - 1) * np.log(ranks)[:, None] + (high - 1) * np.log1p(-ranks)[:, None] + scale
    return np.concatenate([np.ones((len(ranks), 1)), np.exp(logs)], axis=1)


def _merged(
    values: NDArray[np.float64], counts: NDArray[np.int64], new: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Distinct ascending values and how often each occurs, with the new ones."""
    together, where = np.unique(np.concatenate([values, new]), return_inverse=True)
    added = np.bincount(where, np.concatenate([counts, np.ones(len(new))]), len(together))
    return together, np.rint(added).astype(np.int64)


def _rounded(kappa: NDArray[np.float64]) -> NDArray[np.float64]:
    fraction, exponent = np.frexp(kappa)
    steps = 2 * STEPS_PER_OCTAVE  # the fraction is from 1/2 to 1
    rounded: NDArray[np.float64] = np.ldexp(np.rint(fraction * steps) / steps, exponent)
    return rounded


def _median(values: NDArray[np.float64]) -> float:
    """The lower one of two in the middle: the mean of 0 and infinity is no help."""
    return float(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])


def _concentrations(name: str, kappa: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(kappa, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, one number for each query is needed")
    wrong = np.flatnonzero(~(array >= 0))
    if len(wrong):
        raise ValueError(
            f"{name} has the value {array[wrong[0]]:g} at index {wrong[0]}: concentrations are from 0 (uniform) to "
            "infinity"
        )
    return array


def _to_json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
