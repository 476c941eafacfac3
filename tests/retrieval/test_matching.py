"""The match probability against scikit-learn's logistic regression, limits, and pairs whose probability is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from laplacian_metric.retrieval.matching import MatchProbability, Reliability


def known_pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log likelihoods, whether the pairs match, and the probability with which they were made to."""
    generator = np.random.default_rng(seed)
    x = generator.normal(3, 20, count)
    probability = 1 / (1 + np.exp(-(0.2 * x - 1)))
    return x, generator.random(count) < probability, probability


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e4))
def test_it_is_the_logistic_regression_of_the_smoothed_targets(seed: int, scale: float) -> None:
    x, same, _ = known_pairs(300, seed)
    x = scale * x
    fitted = MatchProbability.fit(x, same)
    high, low = (same.sum() + 1) / (same.sum() + 2), 1 / ((~same).sum() + 2)
    share = np.where(same, high, low)
    # A target between 0 and 1 is a pair of both kinds, each with its weight.
    reference = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        np.concatenate([x, x])[:, None] / scale,
        np.repeat([True, False], len(x)),
        np.concatenate([share, 1 - share]),
    )
    assert fitted.slope * scale == pytest.approx(reference.coef_[0, 0], rel=1e-3)
    assert fitted.intercept == pytest.approx(reference.intercept_[0], rel=1e-3, abs=1e-3)


def test_it_finds_the_probability_that_made_the_pairs() -> None:
    x, same, truth = known_pairs(40_000, 0)
    fitted = MatchProbability.fit(x, same)
    assert np.abs(fitted.probability(x) - truth).max() < 0.02
    assert Reliability.of(fitted.probability(x), same).error < 0.01
    assert fitted.loss == pytest.approx(-np.mean(np.log(np.where(same, truth, 1 - truth))), abs=0.01)


def test_pairs_told_apart_without_a_mistake_have_a_finite_slope() -> None:
    fitted = MatchProbability.fit([5.0, 6.0, 7.0, -5.0, -6.0], [True, True, True, False, False])
    assert 0 < fitted.slope < 10
    assert (np.diff(fitted.probability([-6.0, 0.0, 7.0])) > 0).all()


def test_a_likelihood_that_says_the_contrary_gives_the_share_that_matches() -> None:
    fitted = MatchProbability.fit([5.0, 4.0, -4.0, -5.0, -6.0], [False, False, True, True, True])
    assert fitted.slope == 0
    assert fitted.probability([-np.inf, 0.0, np.inf]) == pytest.approx([0.6] * 3, abs=0.05)


def test_equal_likelihoods_give_the_share_that_matches() -> None:
    fitted = MatchProbability.fit([2.0] * 100, [True] * 30 + [False] * 70)
    assert fitted.probability([2.0]) == pytest.approx([0.3], abs=0.02)


def test_shapes_pass_through_and_infinities_are_certain() -> None:
    fitted = MatchProbability(slope=1.0, intercept=0.0, num_pairs=2, num_matching=1, loss=0.0)
    assert fitted.probability(np.zeros((3, 0))).shape == (3, 0)
    assert fitted.probability([[-np.inf, np.inf]]).tolist() == [[0.0, 1.0]]


def test_it_survives_json() -> None:
    fitted = MatchProbability.fit(*known_pairs(50, 1)[:2])
    assert MatchProbability.from_dict(json.loads(json.dumps(fitted.to_dict()))) == fitted


def test_reliability_by_hand() -> None:
    table = Reliability.of([0.0, 0.05, 1.0, 0.95], [False, True, True, False])
    assert table.count == (2, 0, 0, 0, 0, 0, 0, 0, 0, 2)
    assert table.probability[0] == pytest.approx(0.025)
    assert table.matched[0] == 0.5
    assert table.probability[1] is None
    assert table.matched[1] is None
    assert table.error == pytest.approx((2 * 0.475 + 2 * 0.475) / 4)


@pytest.mark.parametrize(
    ("values", "same", "error", "message"),
    [
        ([1.0, 2.0], [True, True], ValueError, "none of the 2 pairs differs"),
        ([1.0, 2.0], [False, False], ValueError, "none of the 2 pairs matches"),
        ([1.0, np.nan], [True, False], ValueError, "log_likelihood has the value nan at index 1"),
        ([], np.zeros(0, bool), ValueError, r"log_likelihood has shape \(0,\)"),
        ([1.0, 2.0], [True], ValueError, r"same has shape \(1,\) for 2 pairs"),
        ([1.0, 2.0], [1, 0], TypeError, "same has dtype int"),
    ],
)
def test_bad_pairs_are_named(
    values: list[float], same: list[bool], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MatchProbability.fit(values, same)


def test_a_falling_slope_is_refused() -> None:
    with pytest.raises(ValueError, match="slope is -1"):
        MatchProbability(-1.0, 0.0, 2, 1, 0.0)
    with pytest.raises(ValueError, match=r"outside of \[0, 1\]"):
        Reliability.of([1.5], [True])
