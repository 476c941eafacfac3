"""The logistic against other solvers, tails and sigmoid by hand, the calibration error and its interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from laplacian_metric.trust.calibration import (
    CalibrationError,
    Logistic,
    Tail,
    beyond,
    calibration_error,
    fit_sigmoid,
    folds_of,
    sigmoid,
)


def sample(seed: int, num: int = 200, dim: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((num, dim)) * [1, 3, 0.2, 1][:dim] + 2
    return x, generator.random(num) < sigmoid(x @ np.array([1.0, -0.5, 2.0, 0.3][:dim]))


@pytest.mark.parametrize("ridge", [0.3, 1.0, 10.0])
def test_without_a_sign_in_force_it_is_that_of_scikit_learn(ridge: float) -> None:
    x, target = sample(0)
    standard = (x - x.mean(0)) / x.std(0)
    free = LogisticRegression(C=1 / ridge, tol=1e-10, max_iter=10_000).fit(standard, target)
    ours = Logistic.fit(x, target, np.sign(free.coef_[0]), ridge)
    np.testing.assert_allclose(ours.weights, free.coef_[0], atol=1e-4)
    np.testing.assert_allclose(sigmoid(ours.logit(x)), free.predict_proba(standard)[:, 1], atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), signs=st.lists(st.sampled_from([-1, 1]), min_size=4, max_size=4))
def test_with_signs_no_other_solver_does_better(seed: int, signs: list[int]) -> None:
    x, target = sample(seed, 60)
    ours = Logistic.fit(x, target, np.array(signs))
    assert (ours.weights * signs >= 0).all()
    standard = (x - x.mean(0)) / x.std(0)

    def loss(w: np.ndarray) -> float:
        margin = np.where(target, 1, -1) * (standard @ w[:4] + w[4])
        return float(np.logaddexp(0, -margin).sum() + w[:4] @ w[:4] / 2)

    bounds = [(0, None) if s > 0 else (None, 0) for s in signs] + [(None, None)]
    other = minimize(
        loss, np.zeros(5), method="SLSQP", bounds=bounds, options={"maxiter": 500, "ftol": 1e-12}
    )
    assert loss(np.append(ours.weights, ours.intercept)) <= other.fun + 1e-6


def test_a_constant_input_has_no_influence() -> None:
    x, target = sample(1)
    x[:, 2] = 7.0
    logistic = Logistic.fit(x, target, np.ones(4))
    assert np.isfinite(logistic.logit(x)).all()
    assert logistic.contributions(x)[:, 2].tolist() == [0] * len(x)


def test_a_tail_is_the_share_and_then_an_exponential() -> None:
    values = np.random.default_rng(0).standard_normal(400)
    tail = Tail.fit(values)
    threshold = np.quantile(values, 0.95)
    excess = (values[values > threshold] - threshold).mean()
    for x in (-9.0, -0.3, values[5], 1.0, threshold + 0.01, 7.0):
        share = (values >= x).mean()
        expected = -np.log(max(share, 0.05)) if x <= threshold else -np.log(0.05) + (x - threshold) / excess
        assert tail(np.array([x]))[0] == pytest.approx(expected)


def test_the_tail_of_equal_numbers_is_finite() -> None:
    assert np.isfinite(Tail.fit(np.full(60, 3.0))(np.array([2.0, 3.0, 4.0]))).all()
    assert beyond(np.full(60, 3.0), 0.05) == (3.0, 1e-6)


@pytest.mark.parametrize("separated", [False, True])
def test_the_sigmoid_rises_and_stays_finite(separated: bool) -> None:
    x = np.linspace(-4, 4, 300)
    right = x > 0 if separated else np.random.default_rng(0).random(300) < sigmoid(0.5 + 1.5 * x)
    a, b = fit_sigmoid(x, right)
    assert 0 < b <= 20
    if not separated:
        assert (a, b) == (pytest.approx(0.5, abs=0.4), pytest.approx(1.5, abs=0.4))


def test_folds_share_out_right_and_wrong() -> None:
    right = np.random.default_rng(0).random(97) < 0.8
    fold = folds_of(right)
    for kind in (right, ~right):
        counts = np.bincount(fold[kind], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_the_calibration_error_is_that_of_a_loop() -> None:
    generator = np.random.default_rng(0)
    p = np.append(generator.random(200), [0.0, 1.0, 1.0])
    right = generator.random(203) < 0.6
    expected = 0.0
    for low in range(10):
        inside = [i for i in range(203) if min(int(p[i] * 10), 9) == low]
        if inside:
            expected += len(inside) / 203 * abs(np.mean(p[inside]) - np.mean(right[inside]))
    assert calibration_error(p, right) == pytest.approx(expected)


@pytest.mark.statistical
@pytest.mark.parametrize("shift", [0.0, 0.08, 0.2])
def test_the_interval_holds_the_true_error(shift: float) -> None:
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(60):
        p = generator.uniform(0.3, 0.7, 300)
        right = generator.random(300) < p + shift
        error = CalibrationError.of(p, right, resamples=200)
        covered += error.low <= shift <= error.high
    assert covered >= 50  # 95 % of 60 is 57; the basic bootstrap is a little short
