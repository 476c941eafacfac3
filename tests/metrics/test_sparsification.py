"""Does uncertainty find the errors: sparsification and R-AUROC, at their extremes, by hand and by definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from laplacian_metric import metrics
from laplacian_metric.metrics.sparsification import refusals, wilson
from laplacian_metric.metrics.statistics import area, sparsification_curve
from tests.metrics import reference
from tests.metrics.reference import clustered


@pytest.fixture(scope="module")
def noisy() -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings and labels with errors, and for each query whether its nearest neighbour is wrong."""
    z, labels = clustered(3000, 3, 10, 0.35)
    similarity = (z.double() @ z.double().T).fill_diagonal_(-2)
    return z, labels, labels[similarity.argmax(1)] != labels


def test_a_perfect_uncertainty(noisy: tuple[Tensor, Tensor, Tensor]) -> None:
    z, labels, wrong = noisy
    curve = metrics.sparsify(metrics.rank(z, labels), wrong.double())
    assert metrics.r_auroc(z, labels, wrong.double()) == 1
    assert metrics.r_auroc(z, labels, -wrong.double()) == 0
    assert (curve.area, curve.gap) == (curve.oracle, 0)
    assert curve.oracle > curve.random


def test_a_constant_uncertainty_is_a_random_one(noisy: tuple[Tensor, Tensor, Tensor]) -> None:
    z, labels, wrong = noisy
    assert metrics.r_auroc(z, labels, torch.ones(3000)) == 0.5
    recall = 1 - float(wrong.double().mean())
    assert metrics.ausc(z, labels, torch.ones(3000)) == pytest.approx(recall, abs=1e-12)
    curve = metrics.sparsify(metrics.rank(z, labels), torch.zeros(3000))
    assert curve.random == pytest.approx(recall, abs=1e-12)


@pytest.mark.statistical
def test_a_random_uncertainty(noisy: tuple[Tensor, Tensor, Tensor]) -> None:
    z, labels, wrong = noisy
    uncertainty = torch.rand(3000, generator=torch.Generator().manual_seed(0))
    errors = int(wrong.sum())
    # The standard error of an AUROC under independence is sqrt((n + 1)/(12 n0 n1)); four of them.
    bound = 4 * math.sqrt(3001 / (12 * errors * (3000 - errors)))
    assert abs(metrics.r_auroc(z, labels, uncertainty) - 0.5) < bound
    recall = 1 - errors / 3000
    # A mean over the curve varies less than its last points but no more than recall of a tenth of the queries.
    bound = 4 * math.sqrt(recall * (1 - recall) / 300)
    assert abs(metrics.ausc(z, labels, uncertainty) - recall) < bound


def test_sklearn_agrees_with_ties(noisy: tuple[Tensor, Tensor, Tensor]) -> None:
    z, labels, wrong = noisy
    uncertainty = torch.randint(6, (3000,), generator=torch.Generator().manual_seed(0)).double() + 3.0 * wrong
    theirs = roc_auc_score(wrong.numpy(), uncertainty.numpy())
    assert metrics.r_auroc(z, labels, uncertainty) == pytest.approx(theirs, abs=1e-12)


def test_magnitudes_do_not_matter(noisy: tuple[Tensor, Tensor, Tensor]) -> None:
    # A library that squashes scores through a sigmoid gives 0.5 for both of these.
    z, labels, wrong = noisy
    uncertainty = torch.rand(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + wrong
    expected = metrics.r_auroc(z, labels, uncertainty)
    assert expected > 0.9
    assert metrics.r_auroc(z, labels, 1e3 + 1e6 * uncertainty) == expected
    assert metrics.r_auroc(z, labels, 1e-9 * uncertainty) == expected


def test_nothing_to_tell_apart_is_nan() -> None:
    z = torch.eye(2).repeat_interleave(2, dim=0)
    assert math.isnan(metrics.r_auroc(z, [0, 0, 1, 1], torch.arange(4.0)))


def test_the_curve_by_hand() -> None:
    # Five queries, the surest two right, then wrong, right, wrong.
    right = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]).double()
    curve = sparsification_curve(torch.arange(5.0), right, torch.ones(5).double())
    steps = [3 / 5] * 20 + [3 / 4] * 20 + [2 / 3] * 20 + [1.0] * 40
    assert curve.tolist() == pytest.approx(steps)
    trapezoid = sum(steps) - (steps[0] + steps[-1]) / 2
    assert float(area(curve)) == pytest.approx(trapezoid / 99)


@given(st.integers(1, 6), st.data())
def test_ties_count_in_expectation(number: int, data: st.DataObject) -> None:
    uncertainty = data.draw(st.lists(st.integers(0, 2), min_size=number, max_size=number))
    right = data.draw(st.lists(st.integers(0, 1), min_size=number, max_size=number))
    curve = sparsification_curve(
        torch.tensor(uncertainty).double(), torch.tensor(right).double(), torch.ones(number).double()
    )
    expected = reference.sparsification_area([float(u) for u in uncertainty], [float(r) for r in right])
    assert float(area(curve)) == pytest.approx(expected)


@given(st.integers(2, 60), st.integers(0, 2**31))
def test_no_order_beats_the_oracle(number: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    right = torch.randint(2, (number,), generator=generator).double()
    ones = torch.ones(number).double()
    score = torch.rand(number, generator=generator)
    oracle, worst, some = (float(area(sparsification_curve(s, right, ones))) for s in (-right, right, score))
    assert worst - 1e-12 <= some <= oracle + 1e-12


def test_weights_of_the_curve_are_repeats() -> None:
    generator = torch.Generator().manual_seed(0)
    score, right = torch.randint(9, (40,), generator=generator), torch.rand(40, generator=generator).double()
    weights = torch.randint(4, (40,), generator=generator)
    repeated = [x.repeat_interleave(weights) for x in (score, right)]
    once = torch.ones(int(weights.sum())).double()
    assert torch.allclose(
        sparsification_curve(score, right, weights.double()),
        sparsification_curve(*repeated, once),
        atol=1e-12,
    )


def test_infinite_uncertainty_is_the_greatest() -> None:
    z, labels, infinity = (
        torch.eye(3)[[0, 0, 1, 1, 2]],
        [0, 0, 1, 2, 2],
        torch.tensor([1.0, 2, 3, torch.inf, 9]),
    )
    assert metrics.ausc(z, labels, infinity) == metrics.ausc(z, labels, infinity.clamp_max(100.0))


def by_loop(
    uncertainty: list[float], wrong: list[bool], outside: list[float], percent: int
) -> tuple[float, ...]:
    """What is answered, found by trying every threshold: refuse as many as asked for, but no more."""
    number = len(uncertainty)
    for threshold in sorted(set(uncertainty)):
        kept = [error for score, error in zip(uncertainty, wrong, strict=True) if score <= threshold]
        if number - len(kept) <= percent * number // 100:
            refused = sum(score > threshold for score in outside) / len(outside)
            return threshold, len(kept), sum(kept), refused
    raise AssertionError


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.5, 2.0, math.inf]), st.booleans()), min_size=1, max_size=20
    )
)
def test_every_row_is_what_its_threshold_does(queries: list[tuple[float, bool]]) -> None:
    uncertainty, wrong = [score for score, _ in queries], [error for _, error in queries]
    outside = [0.2, 0.5, math.inf]
    rows = refusals(uncertainty, wrong, {"out": outside})
    assert len(rows) == 100
    for percent in (0, 1, 33, 50, 99):
        row = rows[percent]
        counted = (row.threshold, row.answered, row.wrong, row.ood["out"])
        assert counted == pytest.approx(by_loop(uncertainty, wrong, outside, percent))


def test_without_ties_it_is_the_sparsification_curve() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(130) % 4
    z = torch.nn.functional.normalize(torch.randn(130, 3, generator=generator), dim=1)
    uncertainty = torch.rand(130, generator=generator).double()
    ranking = metrics.rank(z, labels)
    rows = refusals(uncertainty.numpy(), ranking.first_is_right().numpy() == 0)
    curve = metrics.sparsify(ranking, uncertainty).curve
    np.testing.assert_allclose([1 - row.error for row in rows], curve.numpy(), atol=1e-12)


@pytest.mark.parametrize(("hits", "number"), [(0, 5), (5, 5), (3, 17), (1, 1000)])
def test_intervals_are_wilsons(hits: int, number: int) -> None:
    expected = stats.binomtest(hits, number).proportion_ci(method="wilson")
    assert wilson(hits, number) == pytest.approx((expected.low, expected.high), abs=1e-12)
