"""Intervals by the bootstrap over queries, and paired differences of methods over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laplacian_metric.core.checked import Number

CHUNK = 1 << 20  # weights that are in memory at a time

Statistic = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Interval:
    """The central ``level`` of a statistic over bootstrap draws; ``undefined`` draws, which had none, are
    left out.
    """

    low: Number
    high: Number
    level: float
    resamples: int
    undefined: int = 0


def bootstrap(
    statistic: Statistic,
    sizes: int | Sequence[int],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> Interval:
    """The percentile interval of a statistic of N items.

    The statistic takes weights (R, N), how often each draw holds each item, and returns (R,). Several
    ``sizes`` are strata: that many items of each are drawn, with replacement. Without a generator one with
    seed 0 is used.

    Example:
        >>> from functools import partial
        >>> from laplacian_metric.metrics.statistics import mean
        >>> right = torch.tensor([1.0, 0.0] * 50).double()
        >>> interval = bootstrap(partial(mean, right), 100)
        >>> 0.38 < interval.low < 0.42 < 0.58 < interval.high < 0.62
        True
    """
    intervals = bootstrap_all({"": statistic}, sizes, resamples=resamples, level=level, generator=generator)
    return intervals[""]


def bootstrap_all(
    statistics: Mapping[str, Statistic],
    sizes: int | Sequence[int],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
    groups: Tensor | None = None,
) -> dict[str, Interval]:
    """As `bootstrap`, for several statistics of the same items, from the same draws.

    With ``groups`` (N,), such as classes, whole groups are drawn: what items of a group have in common then counts to
    the spread.

    Example:
        >>> from functools import partial
        >>> from laplacian_metric.metrics.statistics import mean
        >>> classes = torch.arange(10).repeat_interleave(10)
        >>> share = {"share": partial(mean, (classes < 5).double())}
        >>> whole, single = (bootstrap_all(share, 100, groups=g)["share"] for g in (classes, None))
        >>> whole.high - whole.low > 2 * (single.high - single.low)
        True
    """
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}, at least one draw is needed")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, a share between 0 and 1 is needed, such as 0.95")
    values: dict[str, list[Tensor]] = {name: [] for name in statistics}
    strata = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if groups is not None:
        if groups.shape != strata:
            raise ValueError(
                f"groups has shape {tuple(groups.shape)} for {sizes} items: one group for each is needed"
            )
        members = torch.unique(groups.cpu(), return_inverse=True)[1]
        strata = (int(members.max()) + 1,)
    for weights in _draws(strata, resamples, generator, len(members) if groups is not None else sum(strata)):
        if groups is not None:
            weights = weights[:, members]
        for name, statistic in statistics.items():
            values[name].append(statistic(weights.to(device)).cpu())
    intervals = {}
    for name, parts in values.items():
        drawn = torch.cat(parts)
        defined = drawn[~drawn.isnan()]
        low = high = float("nan")
        if len(defined):
            ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=defined.dtype)
            low, high = (float(end) for end in torch.quantile(defined, ends))
        intervals[name] = Interval(low, high, level, len(drawn), len(drawn) - len(defined))
    return intervals


def _draws(
    strata: Sequence[int], resamples: int, generator: torch.Generator | None, width: int
) -> Iterator[Tensor]:
    """Blocks of weights (R, N): how often each item is in a draw with replacement, each stratum's own number."""
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    chunk = max(1, CHUNK // max(1, width))
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        parts = []
        for size in strata:
            drawn = torch.randint(size, (rows, size), generator=generator, device=generator.device).cpu()
            ones = torch.ones(1, dtype=torch.float64).expand(rows, size)
            parts.append(torch.zeros(rows, size, dtype=torch.float64).scatter_add_(1, drawn, ones))
        yield torch.cat(parts, dim=1)


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
        >>> comparison = compare_paired([0.81, 0.83, 0.85], [0.80, 0.81, 0.82])
        >>> round(comparison.difference, 4), round(comparison.low, 4), round(comparison.high, 4), comparison.differs
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
