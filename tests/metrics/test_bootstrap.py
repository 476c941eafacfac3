"""Intervals over queries and over seeds: against scipy, textbook formulas and their own definition."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from laplacian_metric.metrics import bootstrap, compare_paired
from laplacian_metric.metrics.statistics import auroc, mean


def test_the_interval_of_a_mean_is_close_to_the_normal_one() -> None:
    values = torch.rand(2000, generator=torch.Generator().manual_seed(0)).double()
    interval = bootstrap(partial(mean, values), 2000, resamples=4000)
    reach = 1.96 * float(values.std()) / math.sqrt(2000)
    # The ends of a percentile interval of 4,000 draws have a standard error of about a twentieth of its reach.
    assert interval.low == pytest.approx(float(values.mean()) - reach, abs=0.2 * reach)
    assert interval.high == pytest.approx(float(values.mean()) + reach, abs=0.2 * reach)
    assert (interval.level, interval.resamples, interval.undefined) == (0.95, 4000, 0)


def test_scipy_finds_about_the_same_for_an_auroc() -> None:
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(150, generator=generator), torch.randn(100, generator=generator) + 0.7
    targets = torch.cat([torch.zeros(150), torch.ones(100)])
    interval = bootstrap(partial(auroc, torch.cat([inside, outside]), targets), (150, 100), resamples=2000)

    def statistic(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return stats.mannwhitneyu(b, a, axis=axis).statistic / (150 * 100)

    theirs = stats.bootstrap(
        (inside.numpy(), outside.numpy()),
        statistic,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_each_draw_has_as_many_items_of_each_stratum() -> None:
    seen: list[Tensor] = []

    def statistic(weights: Tensor) -> Tensor:
        seen.append(weights)
        return weights[:, 0]

    bootstrap(statistic, (3, 5), resamples=50)
    weights = torch.cat(seen)
    assert weights.shape == (50, 8)
    assert weights[:, :3].sum(1).tolist() == [3] * 50
    assert weights[:, 3:].sum(1).tolist() == [5] * 50
    assert bool((weights == weights.round()).all())


def test_the_generator_decides_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    statistic = partial(mean, torch.rand(30, generator=torch.Generator().manual_seed(0)).double())
    first, second, other = (
        bootstrap(statistic, 30, resamples=200, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other
    assert bootstrap(statistic, 30) == bootstrap(statistic, 30)
    monkeypatch.setattr("laplacian_metric.metrics.resampling.CHUNK", 100)
    assert bootstrap(statistic, 30, resamples=200, generator=torch.Generator().manual_seed(1)) == first


def test_draws_in_which_a_statistic_is_undefined_are_counted() -> None:
    scores, targets = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])
    interval = bootstrap(partial(auroc, scores, targets), 2, resamples=400)
    # A draw of two has both kinds half of the time.
    assert 150 < interval.undefined < 250
    assert (interval.low, interval.high) == (1, 1)
    never = bootstrap(partial(auroc, scores, torch.zeros(2)), 2, resamples=10)
    assert never.undefined == 10
    assert math.isnan(never.low)


def test_a_lower_level_is_narrower() -> None:
    statistic = partial(mean, torch.arange(100.0).double())
    wide, narrow = (bootstrap(statistic, 100, level=level) for level in (0.95, 0.5))
    assert wide.low < narrow.low < 49.5 < narrow.high < wide.high


@pytest.mark.statistical
def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    inside = 0
    for _ in range(300):
        values = (torch.rand(150, generator=generator) < 0.7).double()
        interval = bootstrap(partial(mean, values), 150, resamples=300, level=0.9, generator=generator)
        inside += interval.low <= 0.7 <= interval.high
    # 0.9 with four standard errors of a share of 300, and 0.03 for the grid of a share of 150.
    assert abs(inside / 300 - 0.9) < 4 * math.sqrt(0.09 / 300) + 0.03


def test_seeds_are_compared_in_pairs() -> None:
    # Seeds differ far more than methods: only the pairing shows the difference.
    first = [0.70, 0.80, 0.90, 0.60, 0.75]
    second = [0.68, 0.79, 0.88, 0.58, 0.74]
    comparison = compare_paired(first, second)
    theirs = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (comparison.low, comparison.high) == pytest.approx((theirs.low, theirs.high))
    assert comparison.difference == pytest.approx(0.016)
    assert comparison.differs
    assert not compare_paired(first, [0.75, 0.70, 0.80, 0.90, 0.60]).differs


def test_a_comparison_by_hand() -> None:
    # Differences 1 and 3: mean 2, standard deviation sqrt(2), t quantile of one degree of freedom 12.7062.
    comparison = compare_paired([2.0, 4.0], [1.0, 1.0])
    assert (comparison.difference, comparison.num_seeds) == (2, 2)
    assert (comparison.low, comparison.high) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)
