"""Refusing the least certain queries: every row is what its threshold does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from laplacian_metric import metrics
from laplacian_metric.metrics.sparsification import refusals, wilson


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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(([], []), "uncertainty"), (([0.1], [0], {"digits": [0.1, math.nan]}), "digits")],
)
def test_wrong_input_is_named(arguments: tuple[object, ...], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        refusals(*arguments)  # type: ignore[arg-type]
