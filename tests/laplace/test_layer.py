"""Every structure of a layer's posterior against dense linear algebra in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laplace.layer_cases import (
    SMALL,
    Make,
    Problem,
    a_prior,
    a_problem,
    a_ratio,
    dense_precision,
    every_structure,
    float64,
    full,
    gaussian,
    jacobian,
)

close = torch.testing.assert_close


@every_structure
@settings(max_examples=60)
@given(problem=a_problem)
def test_a_curvature(make: Make, problem: Problem) -> None:
    curvature, dense, share = make(problem)
    shape = (problem.outputs, problem.inputs)
    assert curvature.shape == shape
    assert curvature.num_parameters == math.prod(shape)
    close(curvature.diagonal().flatten(), dense.diagonal(), rtol=1e-9, atol=1e-9)
    assert curvature.trace() == pytest.approx(float(dense.trace()), rel=1e-9, abs=1e-9)
    assert curvature.clamped == pytest.approx(share, abs=1e-12)
    again = type(curvature).from_tensors(curvature.tensors(), curvature.clamped)
    assert (again.clamped, again.shape, again.dtype) == (curvature.clamped, shape, float64)
    close(again.diagonal(), curvature.diagonal(), rtol=0, atol=0)
    close(again.posterior(2.0, 0.5).marginal_variance(), curvature.posterior(2.0, 0.5).marginal_variance())


@every_structure
@settings(max_examples=60)
@given(problem=a_problem, prior=a_prior, ratio=a_ratio)
def test_a_posterior(make: Make, problem: Problem, prior: float, ratio: float) -> None:
    curvature, dense, _ = make(problem)
    scale = prior * ratio
    posterior = curvature.posterior(scale, prior)
    precision = dense_precision(dense, scale, prior)
    covariance = torch.linalg.inv(precision)
    shape = (problem.outputs, problem.inputs)
    assert (posterior.shape, posterior.prior, posterior.num_outputs) == (shape, prior, shape[0])
    logdet = float(torch.linalg.slogdet(precision)[1])
    assert posterior.log_determinant() == pytest.approx(logdet, rel=1e-7, abs=1e-6)
    determined = float(torch.linalg.solve(precision, scale * dense).trace())
    assert posterior.effective_parameters() == pytest.approx(determined, rel=1e-7, abs=1e-12)
    close(posterior.marginal_variance(), covariance.diagonal().view(shape), rtol=1e-6, atol=1e-9 / prior)
    vector = gaussian(*shape, seed=problem.seed + 3)
    solved = torch.linalg.solve(precision, vector.flatten()).view(shape)
    close(posterior.solve(vector), solved, rtol=1e-6, atol=1e-7 / prior)


@every_structure
@settings(max_examples=40)
@given(problem=a_problem, prior=a_prior, ratio=a_ratio, num=st.integers(0, 4))
def test_the_predictive(make: Make, problem: Problem, prior: float, ratio: float, num: int) -> None:
    curvature, dense, _ = make(problem)
    inputs = gaussian(num, problem.inputs, seed=problem.seed + 4)
    mean = gaussian(num, problem.outputs, seed=problem.seed + 5)
    gaussians = curvature.posterior(prior * ratio, prior).predictive(inputs, mean)
    J = jacobian(inputs, problem.outputs)
    expected = J @ torch.linalg.inv(dense_precision(dense, prior * ratio, prior)) @ J.mT
    close(gaussians.covariance, expected, rtol=1e-6, atol=1e-7 / prior)
    assert gaussians.mean is mean
    assert torch.equal(gaussians.covariance, gaussians.covariance.mT)
    assert gaussians.marginal_variance.shape == mean.shape


def test_the_full_predictive_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, mean = gaussian(7, 4, seed=1), gaussian(7, 3, seed=2)
    posterior = full(SMALL)[0].posterior(2.0, 1.0)
    whole = posterior.predictive(inputs, mean).covariance
    monkeypatch.setattr("laplacian_metric.laplace.layer.full.BLOCK", 2 * 3 * 12)
    close(posterior.predictive(inputs, mean).covariance, whole)


@every_structure
@settings(max_examples=20)
@given(problem=a_problem, ratio=st.sampled_from([0.0, 0.01, 1.0, 30.0]))
def test_float32(make: Make, problem: Problem, ratio: float) -> None:
    exact, dense, _ = make(problem)
    curvature = exact.to(dtype=torch.float32)
    assert (curvature.dtype, curvature.shape, curvature.clamped) == (
        torch.float32,
        exact.shape,
        exact.clamped,
    )
    posterior = curvature.posterior(0.1 * ratio, 0.1)
    covariance = torch.linalg.inv(dense_precision(dense, 0.1 * ratio, 0.1))
    variance = posterior.marginal_variance()
    assert variance.dtype == torch.float32
    close(variance.double().flatten(), covariance.diagonal(), rtol=1e-3, atol=1e-4)
    assert posterior.sample(2).dtype == torch.float32
    inputs = gaussian(3, problem.inputs, seed=problem.seed).float()
    gaussians = posterior.predictive(inputs, gaussian(3, problem.outputs, seed=1).float())
    assert gaussians.variance.dtype == gaussians.covariance.dtype == torch.float32
    J = jacobian(inputs, problem.outputs)
    close(gaussians.covariance.double(), J @ covariance @ J.mT, rtol=1e-3, atol=2e-3)


@pytest.mark.statistical
@every_structure
@pytest.mark.parametrize("kind", ["positive", "zero"])
def test_samples(make: Make, kind: str) -> None:
    """Whitened with the Cholesky factor of P, k draws have mean 0 and covariance I: standard errors of at most
    sqrt(2/k), of which 5 are allowed."""
    k = 20_000
    curvature, dense, _ = make(Problem(outputs=3, inputs=4, rank=4, kind=kind, seed=3))
    posterior = curvature.posterior(50.0, 0.5)
    draws = posterior.sample(k, torch.Generator().manual_seed(0))
    assert draws.shape == (k, 3, 4)
    assert torch.equal(draws, posterior.sample(k, torch.Generator().manual_seed(0)))
    assert not torch.equal(draws, posterior.sample(k, torch.Generator().manual_seed(1)))
    white = draws.flatten(1) @ torch.linalg.cholesky(dense_precision(dense, 50.0, 0.5))
    close(white.mean(0), torch.zeros(12, dtype=float64), rtol=0, atol=5 / math.sqrt(k))
    close(white.T @ white / k, torch.eye(12, dtype=float64), rtol=0, atol=5 * math.sqrt(2 / k))
