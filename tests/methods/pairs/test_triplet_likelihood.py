"""The likelihood of triplets: moments against quadratic forms and matrices, the far tail against 40 digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive
from torch import Tensor

from laplacian_metric import vmf
from laplacian_metric.methods.pairs.triplet_likelihood import (
    Directed,
    Distances,
    Moments,
    Spreads,
    directed_moments,
    gaussian_moments,
    kl_to_gaussian_prior,
    kl_to_uniform,
    log_probability,
)
from tests.pages import run_page

float64 = torch.float64


def triplet(dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Means (3, D) of anchor, positive and negative, and a number for each from 0.1 to 2.1."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(3, dim, generator=generator, dtype=float64)
    return means, 0.1 + 2 * torch.rand(3, generator=generator, dtype=float64)


def on_sphere(dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    means, spreads = triplet(dim, seed)
    return torch.nn.functional.normalize(means, dim=1), 10 * spreads


def vmf_moments(distances: Distances, concentrations: Spreads, dim: int) -> Moments:
    return directed_moments(distances, *(Directed.of(kappa, dim) for kappa in concentrations))


# --- moments of Gaussians ---


def of_a_quadratic_form(means: Tensor, variances: Tensor) -> tuple[float, float]:
    """tau = x.Mx of the vector of all three: tr MS + m.Mm, and 2 tr MSMS + 4 m.MSMm."""
    dim = means.shape[1]
    m = torch.tensor([[0.0, -1.0, 1.0], [-1.0, 1.0, 0.0], [1.0, 0.0, -1.0]], dtype=float64)
    form = torch.kron(m, torch.eye(dim, dtype=float64))
    ms = form @ torch.diag(variances.repeat_interleave(dim))
    mean = means.flatten()
    return (
        float(ms.trace() + mean @ form @ mean),
        float(2 * (ms @ ms).trace() + 4 * mean @ ms @ form @ mean),
    )


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(0, 1000), st.sampled_from([1e-3, 1.0, 30.0]))
def test_gaussian_moments_are_those_of_a_quadratic_form(dim: int, seed: int, scale: float) -> None:
    means, variances = triplet(dim, seed)
    moments = gaussian_moments(Distances.of(*means), Spreads(*(scale * variances)), dim)
    mean, variance = of_a_quadratic_form(means, scale * variances)
    assert float(moments.mean) == pytest.approx(mean, rel=1e-10, abs=1e-10)
    assert float(moments.variance) == pytest.approx(variance, rel=1e-10)


def paper_variance(means: Tensor, variances: Tensor, sign: float) -> float:
    """The paper's formula summed over dimensions, with the sign of its two terms mu_a mu sigma^2; it prints +1."""
    (a, p, n), (va, vp, vn) = means, variances
    half = vp * (vp + 2 * p**2) + vn * (vn + 2 * n**2) - 4 * va * p * n
    half -= 2 * a * (a * (p**2 + n**2) - sign * 2 * p * vp - sign * 2 * n * vn)
    half += 2 * (va + a**2) * ((vp + p**2) + (vn + n**2))
    return float(2 * half.sum())


def test_the_printed_variance_has_two_terms_with_the_wrong_sign() -> None:
    means, variances = triplet(5)
    right = float(gaussian_moments(Distances.of(*means), Spreads(*variances), 5).variance)
    assert paper_variance(means, variances, -1.0) == pytest.approx(right, rel=1e-12)
    assert abs(paper_variance(means, variances, 1.0) / right - 1) > 0.05
    # What tau is does not depend on the origin.
    moved = means + 3
    assert paper_variance(moved, variances, -1.0) == pytest.approx(right, rel=1e-9)
    assert abs(paper_variance(moved, variances, 1.0) / paper_variance(means, variances, 1.0) - 1) > 0.5


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 16])
def test_gaussian_moments_are_those_of_draws(dim: int) -> None:
    """200,000 draws; 5 standard errors are allowed."""
    means, variances = triplet(dim, 3)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(3, 200_000, dim, generator=generator, dtype=float64)
    a, p, n = means[:, None] + variances.sqrt()[:, None, None] * noise
    compare((a - p).square().sum(1) - (a - n).square().sum(1), gaussian_moments, means, variances)


def compare(tau: Tensor, moments: Callable[..., Moments], means: Tensor, spreads: Tensor) -> None:
    computed = moments(Distances.of(*means), Spreads(*spreads), means.shape[1])
    count = len(tau)
    assert abs(float(tau.mean() - computed.mean)) < 5 * float(tau.std()) / math.sqrt(count)
    squares = (tau - computed.mean).square()
    assert abs(float(squares.mean() - computed.variance)) < 5 * float(squares.std()) / math.sqrt(count)


# --- moments of von Mises-Fisher distributions ---


def length_of(kappa: float, dim: int) -> float:
    return float(ive(dim / 2, kappa) / ive(dim / 2 - 1, kappa))


def of_matrices(means: Tensor, kappas: Tensor) -> tuple[float, float]:
    """tau = 2 a.(n - p), from E x and E xx' = (A/k) I + (1 - D A/k) mm'."""
    dim = means.shape[1]
    first, second = [], []
    for mean, kappa in zip(means, kappas.tolist(), strict=True):
        length = length_of(kappa, dim)
        first.append(length * mean)
        flat = length / kappa
        second.append(flat * torch.eye(dim, dtype=float64) + (1 - dim * flat) * torch.outer(mean, mean))
    (a, p, n), (aa, pp, nn) = first, second
    ww = nn + pp - torch.outer(n, p) - torch.outer(p, n)
    mean = float(2 * a @ (n - p))
    return mean, float(4 * (aa * ww).sum()) - mean**2


@settings(max_examples=25)
@given(st.integers(2, 40), st.integers(0, 1000), st.sampled_from([0.01, 1.0, 20.0]))
def test_vmf_moments_are_those_of_matrices(dim: int, seed: int, scale: float) -> None:
    means, kappas = on_sphere(dim, seed)
    moments = vmf_moments(Distances.of(*means), Spreads(*(scale * kappas)), dim)
    mean, variance = of_matrices(means, scale * kappas)
    assert float(moments.mean) == pytest.approx(mean, rel=1e-8, abs=1e-10)
    assert float(moments.variance) == pytest.approx(variance, rel=1e-8)


@pytest.mark.statistical
def test_vmf_moments_are_those_of_draws() -> None:
    """200,000 draws; 5 standard errors are allowed."""
    means, kappas = on_sphere(4, 2)
    a, p, n = vmf.sample(means, kappas, 200_000, generator=torch.Generator().manual_seed(1)).movedim(1, 0)
    compare((a - p).square().sum(1) - (a - n).square().sum(1), vmf_moments, means, kappas)


@pytest.mark.parametrize("dim", [2, 3, 64])
def test_uniform_distributions_know_nothing_of_their_means(dim: int) -> None:
    means, _ = on_sphere(dim)
    moments = vmf_moments(Distances.of(*means), Spreads(*torch.zeros(3, dtype=float64)), dim)
    assert float(moments.mean) == 0
    assert float(moments.variance) == pytest.approx(8 / dim)


def test_vmf_moments_near_a_point_are_those_of_a_tangential_gaussian() -> None:
    means, kappas = on_sphere(5)
    kappas = 1e9 * kappas
    a, p, n = means
    moments = vmf_moments(Distances.of(*means), Spreads(*kappas), 5)
    assert float(moments.mean) == pytest.approx(float(2 * a @ (n - p)), rel=1e-6)
    # The gradients of tau = 2 a.(n - p) on the sphere.
    slopes = (2 * (n - p), -2 * a, 2 * a)
    across = [(slope - (slope @ x) * x).square().sum() for slope, x in zip(slopes, means, strict=True)]
    expected = sum(float(square / kappa) for square, kappa in zip(across, kappas, strict=True))
    assert float(moments.variance) == pytest.approx(expected, rel=1e-6)


def test_opposite_points_whose_distance_is_rounded_up_have_a_variance() -> None:
    beyond, kappa = torch.tensor(4 + 1e-6, dtype=float64), torch.tensor(1e12, dtype=float64)
    moments = vmf_moments(
        Distances(beyond, beyond, torch.zeros((), dtype=float64)), Spreads(kappa, kappa, kappa), 3
    )
    assert float(moments.variance) > 0


# --- the tail ---


@pytest.mark.parametrize("x", [-1e12, -1e6, -1e3, -40.0, -5.0, -1.0, 0.0, 0.5, 5.0, 30.0])
def test_the_tail_against_40_digits(x: float) -> None:
    moments = Moments(torch.tensor(-x, dtype=float64, requires_grad=True), torch.ones((), dtype=float64))
    log_probabilities = log_probability(moments)
    (slope,) = torch.autograd.grad(log_probabilities, moments.mean)
    with mpmath.workdps(40):
        z = mpmath.mpf(x)
        if x < -1e5:  # where mpmath's own gives up: the expansion in 1/x^2
            value = -z * z / 2 - mpmath.log(-z * mpmath.sqrt(2 * mpmath.pi)) + mpmath.log1p(-1 / z**2)
            hazard = -z - 1 / z
        else:
            phi = mpmath.erfc(-z / mpmath.sqrt(2)) / 2
            value = mpmath.log(phi) if x <= 0 else mpmath.log1p(-mpmath.erfc(z / mpmath.sqrt(2)) / 2)
            hazard = mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi) / phi
    assert float(log_probabilities.detach()) == pytest.approx(float(value), rel=1e-13, abs=1e-300)
    assert float(slope) == pytest.approx(-float(hazard), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("dtype", [torch.float32, float64])
@pytest.mark.parametrize("dim", [2, 512])
@pytest.mark.parametrize("case", ["apart", "equal", "wrong"])
@pytest.mark.parametrize("family", ["gaussian", "vmf"])
def test_everything_is_finite_from_a_millionth_to_a_thousand(
    family: str, case: str, dim: int, dtype: torch.dtype
) -> None:
    means = torch.zeros(3, dim, dtype=dtype)
    means[:, 0] = 1
    if case != "equal":
        means[2 if case == "apart" else 1] *= -1
    for sigma in (1e-6, 1e-3, 1.0, 1e3):
        m = means.clone().requires_grad_()
        v = torch.full((3,), sigma**2, dtype=dtype, requires_grad=True)
        if family == "gaussian":
            moments = gaussian_moments(Distances.of(*m), Spreads(*v), dim)
            divergence = kl_to_gaussian_prior(m, v)
        else:
            kappa = v.reciprocal()
            moments = vmf_moments(Distances.of(*m), Spreads(*kappa), dim)
            divergence = kl_to_uniform(kappa, dim)
        value = log_probability(moments, margin=0.1) - 1e-6 * divergence.sum()
        gradients = torch.autograd.grad(value, [m, v])
        assert bool(value.isfinite())
        for gradient in gradients:
            assert bool(gradient.isfinite().all()), (sigma, gradient)


@pytest.mark.parametrize("family", ["gaussian", "vmf"])
def test_without_noise_the_order_is_certain(family: str) -> None:
    means = torch.eye(3, dtype=float64)[[0, 0, 1]]
    for order, expected in (((0, 1, 2), 0.0), ((0, 2, 1), -math.inf)):
        distances = Distances.of(*means[list(order)])
        spreads = torch.full((3,), 1e-12 if family == "gaussian" else 1e12, dtype=float64)
        moments = (gaussian_moments if family == "gaussian" else vmf_moments)(distances, Spreads(*spreads), 3)
        assert float(log_probability(moments).exp()) == pytest.approx(math.exp(expected), abs=1e-12)


def test_equal_means_are_in_either_order() -> None:
    means, spread = torch.ones(3, 4, dtype=float64) / 2, torch.ones(3, dtype=float64)
    for moments in (gaussian_moments, vmf_moments):
        log_probabilities = log_probability(moments(Distances.of(*means), Spreads(*spread), 4))
        assert float(log_probabilities) == pytest.approx(math.log(0.5))


def test_what_is_more_probably_in_the_wrong_order_gains_by_noise() -> None:
    for mean, margin, sign in ((1.0, 0.0, 1), (-1.0, 0.0, -1), (-0.05, 0.1, 1), (-0.2, 0.1, -1)):
        moments = Moments(torch.tensor(mean).double(), torch.tensor(2.0).double().requires_grad_())
        (slope,) = torch.autograd.grad(log_probability(moments, margin), moments.variance)
        assert math.copysign(1, float(slope)) == sign


@pytest.mark.parametrize("family", ["gaussian", "vmf"])
def test_gradients_are_those_of_differences(family: str) -> None:
    means, spreads = on_sphere(4) if family == "vmf" else triplet(4)

    def value(m: Tensor, s: Tensor) -> Tensor:
        if family == "gaussian":
            moments = gaussian_moments(Distances.of(*m), Spreads(*s), 4)
            return log_probability(moments, 0.3) + kl_to_gaussian_prior(m, s).sum()
        unit = torch.nn.functional.normalize(m, dim=1)
        moments = vmf_moments(Distances.of(*unit), Spreads(*s), 4)
        return log_probability(moments, 0.3) + kl_to_uniform(s, 4).sum()

    assert torch.autograd.gradcheck(value, (means.requires_grad_(), spreads.requires_grad_()))


# --- divergences ---


def test_the_gaussian_divergence_is_torchs() -> None:
    means, variances = triplet(6)
    for mean, variance in zip(means, variances, strict=True):
        q = torch.distributions.Normal(mean, variance.sqrt())
        p = torch.distributions.Normal(torch.zeros_like(mean), torch.full_like(mean, 1 / 6).sqrt())
        expected = torch.distributions.kl_divergence(q, p).sum()
        torch.testing.assert_close(kl_to_gaussian_prior(mean[None], variance[None])[0], expected)


@pytest.mark.parametrize("dim", [2, 3, 10, 64])
def test_the_vmf_divergence_is_that_of_its_definition(dim: int) -> None:
    for kappa in (0.5, 5.0, 300.0):
        nu = dim / 2 - 1
        bessel = math.log(ive(nu, kappa)) + kappa
        log_c = nu * math.log(kappa) - dim / 2 * math.log(2 * math.pi) - bessel
        area = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
        expected = log_c + kappa * length_of(kappa, dim) + area
        actual = kl_to_uniform(torch.tensor(kappa, dtype=float64), dim)
        assert float(actual) == pytest.approx(expected, rel=1e-9, abs=1e-10)


# --- what is refused ---


def test_no_triplets_have_no_moments() -> None:
    none = torch.zeros(0)
    moments = gaussian_moments(Distances(none, none, none), Spreads(none, none, none), 3)
    assert log_probability(moments).shape == (0,)


def test_the_code_on_the_page_runs(root: Path) -> None:
    names = run_page(root / "docs" / "triplet_likelihood.md")
    assert abs(float(names["difference"])) < 0.02  # type: ignore[arg-type]
