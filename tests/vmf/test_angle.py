"""Credible caps against quadrature, closed forms and themselves."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplacian_metric import vmf

float64 = torch.float64
PROBABILITIES = torch.tensor([1e-10, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-10], dtype=float64)


@pytest.mark.parametrize("dim", [2, 3, 4, 16, 128, 512, 2048])
@pytest.mark.parametrize("kappa", [0.0, 1e-3, 1.0, 30.0, 1e3, 1e6, 1e17])
def test_probability_and_quantile_are_inverse(dim: int, kappa: float) -> None:
    """Relative to the smaller of the two tails."""
    k = torch.full_like(PROBABILITIES, kappa)
    angle = vmf.cap_quantile(k, dim, PROBABILITIES)
    back = vmf.cap_probability(k, dim, angle)
    error = (back - PROBABILITIES).abs() / torch.minimum(PROBABILITIES, 1 - PROBABILITIES)
    assert float(error[:-1].max()) < 1e-10
    assert float(error[-1]) < 1e-5  # 1 - 1e-10 itself has only six digits of 1e-10
    assert bool((angle.diff() > 0).all())


@pytest.mark.parametrize("kappa", [0.0, 0.5, 10.0, 1e3, 1e6])
def test_three_dimensions_have_a_closed_form(kappa: float) -> None:
    """P(1 - cos <= y) = (1 - exp(-k y))/(1 - exp(-2 k))."""
    angle = vmf.cap_quantile(torch.full((5,), kappa, dtype=float64), 3, PROBABILITIES[1:-1])
    short = 2 * (angle / 2).sin().square()
    expected = short / 2 if kappa == 0 else torch.expm1(-kappa * short) / math.expm1(-2 * kappa)
    torch.testing.assert_close(expected, PROBABILITIES[1:-1], rtol=1e-11, atol=0)


@pytest.mark.parametrize("dim", [2, 3, 16, 512, 2048])
def test_uniform_caps_are_incomplete_beta_functions(dim: int) -> None:
    angle = torch.linspace(0.05, math.pi - 0.05, 41, dtype=float64)
    expected = scipy.stats.beta.cdf((torch.sin(angle / 2) ** 2).numpy(), (dim - 1) / 2, (dim - 1) / 2)
    actual = vmf.cap_probability(torch.zeros(41, dtype=float64), dim, angle)
    torch.testing.assert_close(actual, torch.from_numpy(expected), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (2, 300.0), (5, 2.0), (16, 60.0), (128, 1e3)])
def test_caps_agree_with_adaptive_quadrature(dim: int, kappa: float) -> None:
    quantiles = vmf.cap_quantile(torch.full((3,), kappa, dtype=float64), dim, PROBABILITIES[2:5]).tolist()
    middle = quantiles[1]

    def density(angle: float) -> float:  # relative to that at the middle
        ratio = (math.sin(angle) / math.sin(middle)) ** (dim - 2)
        return ratio * math.exp(kappa * (math.cos(angle) - math.cos(middle)))

    def integral(low: float, high: float) -> float:
        return float(scipy.integrate.quad(density, low, high, epsabs=0, epsrel=1e-12, limit=200)[0])

    edges = [0.0, *quantiles, min(math.pi, 5 * quantiles[2]), math.pi]
    parts = [integral(low, high) for low, high in itertools.pairwise(edges)]
    shares = torch.tensor([sum(parts[:n]) / sum(parts) for n in (1, 2, 3)], dtype=float64)
    torch.testing.assert_close(shares, PROBABILITIES[2:5], rtol=1e-10, atol=0)


@settings(max_examples=30)
@given(st.integers(2, 3000), st.floats(-3, 17), st.floats(0, 1))
def test_any_cap_is_within_the_sphere_and_finite(dim: int, exponent: float, probability: float) -> None:
    for dtype in (torch.float32, float64):
        kappa = torch.tensor(10.0**exponent, dtype=dtype)
        angle = vmf.cap_quantile(kappa, dim, probability)
        assert angle.dtype == dtype
        assert 0 <= float(angle) <= float(torch.tensor(math.pi, dtype=dtype))
        assert 0 <= float(vmf.cap_probability(kappa, dim, angle)) <= 1


def test_the_ends() -> None:
    kappa = torch.tensor([0.0, 1.0, 1e6])
    assert vmf.cap_quantile(kappa, 5, 0.0).tolist() == [0, 0, 0]
    assert vmf.cap_quantile(kappa, 5, 1.0).tolist() == pytest.approx([math.pi] * 3)
    assert vmf.cap_probability(kappa, 5, 0.0).tolist() == [0, 0, 0]
    assert vmf.cap_probability(kappa, 5, math.pi).tolist() == [1, 1, 1]


@pytest.mark.parametrize("dim", [2, 5, 64])
def test_gradients_by_finite_differences(dim: int) -> None:
    kappa = torch.tensor([0.5, 3.0, 40.0], dtype=float64, requires_grad=True)
    angle = torch.tensor([0.5, 1.0, 1.3], dtype=float64, requires_grad=True)
    probability = torch.tensor([0.5, 0.1, 0.95], dtype=float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda k, a: vmf.cap_probability(k, dim, a), (kappa, angle), rtol=1e-6)
    assert torch.autograd.gradcheck(lambda k, p: vmf.cap_quantile(k, dim, p), (kappa, probability), rtol=1e-6)


def test_numbers_and_tensors_broadcast() -> None:
    kappa = torch.tensor([1.0, 10.0, 100.0])
    levels = torch.tensor([[0.5], [0.95]])
    assert vmf.cap_quantile(kappa, 8, levels).shape == (2, 3)
    assert vmf.cap_quantile(kappa, 8, 0.5).tolist() == vmf.cap_quantile(kappa, 8, levels)[0].tolist()
