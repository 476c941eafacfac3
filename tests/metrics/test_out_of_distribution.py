"""Detection of what is unknown, crops, human labels and mixtures, beside scikit-learn and scipy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from laplacian_metric import metrics
from laplacian_metric.metrics.statistics import auroc
from tests.metrics import reference

scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(scores, scores)
def test_auroc_is_its_definition_and_sklearns(inside: list[float], outside: list[float]) -> None:
    computed = metrics.ood_auroc(torch.tensor(inside), torch.tensor(outside))
    assert computed == pytest.approx(reference.auroc(inside, outside))
    targets = [0] * len(inside) + [1] * len(outside)
    assert computed == pytest.approx(roc_auc_score(targets, inside + outside))
    assert metrics.ood_auroc(torch.tensor(outside), torch.tensor(inside)) == pytest.approx(1 - computed)


@given(scores, scores)
def test_average_precision_is_sklearns(inside: list[float], outside: list[float]) -> None:
    targets = [0] * len(inside) + [1] * len(outside)
    precision = metrics.ood_average_precision(torch.tensor(inside), torch.tensor(outside))
    assert precision == pytest.approx(average_precision_score(targets, inside + outside))


def test_average_precision_by_hand() -> None:
    # From above: out (1/1), then a tie of one out and one in (2/3), then in, then out (3/5).
    inside, outside = torch.tensor([2.0, 1.0]), torch.tensor([3.0, 2.0, 0.0])
    expected = (1 + 2 / 3 + 3 / 5) / 3
    assert metrics.ood_average_precision(inside, outside) == pytest.approx(expected)
    # A trapezoid between these points would be another number.
    assert expected != pytest.approx((1 + (1 + 2 / 3) / 2 + (1 / 2 + 3 / 5) / 2) / 3)


def test_extremes() -> None:
    low, high = torch.arange(50.0), torch.arange(50.0) + 100
    assert (metrics.ood_auroc(low, high), metrics.ood_average_precision(low, high)) == (1, 1)
    assert metrics.ood_auroc(high, low) == 0
    same = torch.zeros(50)
    assert (metrics.ood_auroc(same, same), metrics.ood_average_precision(same, same)) == (0.5, 0.5)


def test_differences_below_float32_still_count() -> None:
    inside = torch.tensor([1.0], dtype=torch.float64)
    assert metrics.ood_auroc(inside, inside + 1e-12) == 1
    assert metrics.ood_auroc(inside.float(), inside) == 0.5
    assert metrics.ood_auroc(torch.tensor([1e30]), torch.tensor([torch.inf])) == 1


def test_crops_by_hand() -> None:
    whole, crop = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.5, 2.0, 2.0, 9.0])
    assert metrics.crop_test(whole, crop) == (1 + 0.5 + 0 + 1) / 4
    assert metrics.crop_test(whole, whole) == 0.5


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=20))
def test_rank_correlation_is_scipys(pairs: list[tuple[int, int]]) -> None:
    first, second = (list(side) for side in zip(*pairs, strict=True))
    correlation = metrics.rank_correlation(torch.tensor(first), torch.tensor(second))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert math.isnan(correlation)
    else:
        assert correlation == pytest.approx(spearmanr(first, second).statistic)


def test_rank_correlation_by_hand() -> None:
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4.
    correlation = metrics.rank_correlation(
        torch.tensor([0.1, 0.5, 0.5, 9.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    )
    assert correlation == pytest.approx((2.25 + 2.25) / math.sqrt(4.5 * 5))


def test_entropy_by_hand() -> None:
    counts = torch.tensor([[4.0, 0.0, 0.0], [2.0, 2.0, 0.0], [1.0, 1.0, 2.0]])
    expected = [0.0, math.log(2), 1.5 * math.log(2)]
    assert metrics.label_entropy(counts).tolist() == pytest.approx(expected)
    assert torch.allclose(metrics.label_entropy(counts / 4), metrics.label_entropy(counts))


def test_weights_are_repeats() -> None:
    generator = torch.Generator().manual_seed(0)
    score, target = (torch.randint(high, (30,), generator=generator).double() for high in (5, 2))
    weights = torch.randint(4, (3, 30), generator=generator)
    computed = auroc(score, target, weights.double())
    for row, value in zip(weights, computed, strict=True):
        theirs = roc_auc_score(target.repeat_interleave(row), score.repeat_interleave(row))
        assert float(value) == pytest.approx(theirs)


# --- the curve ---


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_curve_is_that_of_scikit_learn() -> None:
    inside, outside = (normal(40) * 4).round(), (normal(30, seed=1) * 4 + 2).round()
    curve = metrics.roc(inside, outside)
    truth = torch.cat([torch.zeros(40), torch.ones(30)]).numpy()
    false, true, _ = roc_curve(truth, torch.cat([inside, outside]).numpy(), drop_intermediate=False)
    assert curve.false_positive_rate == pytest.approx(false)
    assert curve.true_positive_rate == pytest.approx(true)


def test_a_long_curve_keeps_its_shape_in_few_points() -> None:
    inside, outside = normal(5000), normal(3000, seed=1) + 1
    curve = metrics.roc(inside, outside)
    false, true = (torch.from_numpy(rate) for rate in (curve.false_positive_rate, curve.true_positive_rate))
    assert len(false) <= 201
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    truth = torch.cat([torch.zeros(5000), torch.ones(3000)])
    area = roc_auc_score(truth.numpy(), torch.cat([inside, outside]).numpy())
    assert float(torch.trapezoid(true, false)) == pytest.approx(area, abs=1e-3)


def test_open_set_auroc_is_that_of_all_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(30, generator=generator) < 0.7
    trust = (10 * torch.rand(30, generator=generator)).round()
    ood = (8 * torch.rand(12, generator=generator)).round()
    total = above = 0.0
    wrong = [(value, 1 / 30) for value in trust[~right].tolist()] + [
        (value, 1 / 12) for value in ood.tolist()
    ]
    for positive in trust[right].tolist():
        for value, weight in wrong:
            total += weight
            above += weight * ((positive > value) + (positive == value) / 2)
    assert metrics.open_set_auroc(right, trust, ood) == pytest.approx(above / total)
