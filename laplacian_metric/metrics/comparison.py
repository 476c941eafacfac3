"""Two methods over the same seeds: the difference, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PairedComparison:
    """The mean over seeds of first minus second, with Student's interval of the paired differences."""

    difference: float
    low: float
    high: float
    level: float
    num_seeds: int

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def compare_paired(
    first: Sequence[float], second: Sequence[float], *, level: float = 0.95
) -> PairedComparison:
    """Compare two methods by one metric, seed by seed: entry i of both comes from the same seed (and so the
    same data).

    Student's t interval, mean -+ t s/sqrt(n) with n - 1 degrees of freedom: with the handful of seeds that is
    usual, a bootstrap over seeds would be too narrow.

    Example:
        >>> found = compare_paired([0.81, 0.83, 0.85], [0.80, 0.81, 0.82])
        >>> round(found.difference, 4), round(found.low, 4), round(found.high, 4), found.differs
        (0.02, -0.0048, 0.0448, False)
    """
    from scipy.stats import t  # imported here, because importing the package stays light

    if len(first) != len(second):
        raise ValueError(
            f"first has {len(first)} seeds and second {len(second)}: they are compared seed by seed"
        )
    number = len(first)
    if number < 2:
        raise ValueError(f"first and second have {number} seeds: an interval needs at least 2")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, a share between 0 and 1 is needed, such as 0.95")
    differences = [float(a) - float(b) for a, b in zip(first, second, strict=True)]
    if not all(math.isfinite(difference) for difference in differences):
        bad = next(i for i, difference in enumerate(differences) if not math.isfinite(difference))
        raise ValueError(
            f"seed number {bad} has a value that is not finite: leave it out of both, and say so"
        )
    mean = math.fsum(differences) / number
    spread = math.sqrt(math.fsum((difference - mean) ** 2 for difference in differences) / (number - 1))
    reach = float(t.ppf((1 + level) / 2, number - 1)) * spread / math.sqrt(number)
    return PairedComparison(mean, mean - reach, mean + reach, level, number)
