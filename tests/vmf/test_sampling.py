"""Samples against the distribution that they are drawn from, and their gradients against finite differences."""

from __future__ import annotations

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric import vmf
from laplacian_metric.vmf.bessel import expand
from laplacian_metric.vmf.sampling import draw_angles
from tests.generators import seeded
from tests.vmf.tables import directions

float64 = torch.float64


@given(st.integers(0, 4), st.integers(0, 3), st.integers(2, 40), st.floats(0, 1e8))
def test_every_shape_gives_unit_vectors(k: int, num: int, dim: int, kappa: float) -> None:
    samples = vmf.sample(directions(num, dim, dtype=torch.float32), torch.full((num,), kappa), k)
    assert samples.shape == (k, num, dim)
    assert samples.dtype == torch.float32
    torch.testing.assert_close(samples.norm(dim=-1), torch.ones(k, num))


def test_a_seed_gives_the_same_samples_twice() -> None:
    mean, kappa = directions(3, 5), torch.tensor([0.0, 1.0, 100.0], dtype=float64)
    first = vmf.sample(mean, kappa, 4, generator=seeded())
    assert torch.equal(first, vmf.sample(mean, kappa, 4, generator=seeded()))
    assert not torch.equal(first, vmf.sample(mean, kappa, 4, generator=seeded(1)))


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 3, 4, 16, 512, 2048])
@pytest.mark.parametrize("kappa", [0.0, 0.1, 3.0, 30.0, 100.0, 1e3, 1e6, 1e12])
def test_angles_follow_the_distribution(dim: int, kappa: float) -> None:
    """Mean of 1 - cos within five standard errors, and a Kolmogorov-Smirnov test at 1e-5; 20,000 angles.

    10 < kappa < D is where an envelope from a Taylor expansion in 1/kappa fails.
    """
    k = torch.full((20_000,), kappa, dtype=float64)
    angles = draw_angles(k, dim, seeded())
    short = 2 * (angles / 2).sin().square()
    gap = float(expand(k[:1], dim).gap)
    assert abs(float(short.mean()) - gap) < 5 * float(short.std()) / len(k) ** 0.5
    uniform = vmf.cap_probability(k, dim, angles)
    assert scipy.stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-5


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 3, 16, 512])
def test_the_mean_of_the_samples_has_length_a(dim: int) -> None:
    """Along the mean and in total, five standard errors of 20,000 samples; isotropic around the mean."""
    for dtype in (torch.float32, float64):
        mean, kappa = directions(1, dim, dtype=dtype), torch.tensor([dim / 8 + 1], dtype=dtype)
        samples = vmf.sample(mean, kappa, 20_000, generator=seeded())[:, 0].double()
        along = samples @ mean[0].double()
        length = float(vmf.mean_resultant_length(kappa.double(), dim))
        assert abs(float(along.mean()) - length) < 5 * float(along.std()) / 20_000**0.5
        across = samples - along[:, None] * mean.double()
        standard_error = (across.square().sum(1).mean() / 20_000) ** 0.5
        assert float(across.mean(0).norm()) < 5 * float(standard_error)
        covariance = torch.linalg.eigvalsh(across.T @ across / 20_000)[1:]  # the first belongs to the mean
        expected = float(1 - along.square().mean()) / (dim - 1)
        assert covariance.tolist() == pytest.approx([expected] * (dim - 1), rel=5 * (dim / 20_000) ** 0.5)


@pytest.mark.parametrize("dim", [2, 3])
def test_float32_samples_in_few_dimensions_stay_at_their_distance(dim: int) -> None:
    """Where the mean takes away nearly all of the noise, rounding must not turn what is left."""
    mean, kappa = directions(1, dim, dtype=torch.float32), torch.tensor([1e8])
    samples = vmf.sample(mean, kappa, 50_000, generator=seeded())[:, 0]
    assert float((samples - mean).norm(dim=1).max()) < 10 * 1e-4


@pytest.mark.parametrize("dim", [2, 3, 5, 16, 512])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 30.0, 1e3, 1e6])
def test_an_angle_moves_with_kappa_as_its_quantile_does(dim: int, kappa: float) -> None:
    probability = torch.tensor([1e-5, 0.1, 0.5, 0.9, 1 - 1e-5], dtype=float64)
    k = torch.full((5,), kappa, dtype=float64, requires_grad=True)
    (slope,) = torch.autograd.grad(vmf.cap_quantile(k, dim, probability).sum(), k)
    step = 1e-4 * max(kappa, 10 * kappa if kappa < 1 else 0)
    high, low = (vmf.cap_quantile(k.detach() + sign * step, dim, probability) for sign in (1, -1))
    torch.testing.assert_close(
        slope, (high - low) / (2 * step), rtol=1e-3 if kappa < 1 else 1e-6, atol=1e-9 / kappa
    )


@pytest.mark.statistical
@pytest.mark.parametrize("dim", [2, 5, 16, 512])
@pytest.mark.parametrize("kappa", [0.0, 2.0, 30.0])
def test_gradients_of_expectations(dim: int, kappa: float) -> None:
    """d/dkappa E (mean . x) = A', d/dkappa E (mean . x)^2 = -(D - 1) (A/kappa)'; five standard errors of 20,000."""
    mean = directions(1, dim)
    k = torch.full((20_000,), kappa, dtype=float64, requires_grad=True)
    x = vmf.sample(mean.expand(20_000, dim), k, 1, generator=seeded())[0]
    at = expand(torch.tensor([kappa], dtype=float64), dim)
    # (A/kappa)' is A''(0)/2 = 0 at kappa = 0, as A is odd.
    second = 0.0 if kappa == 0 else -(dim - 1) * float(at.slope / kappa - at.length / kappa**2)
    for power, expected in ((1, float(at.slope)), (2, second)):
        (slopes,) = torch.autograd.grad((x @ mean[0]).pow(power).sum(), k, retain_graph=True)
        assert abs(float(slopes.mean()) - expected) < 5 * float(slopes.std()) / 20_000**0.5


@pytest.mark.statistical
def test_gradients_of_expectations_in_the_mean() -> None:
    """E (a . x) = A(kappa) a . mean; its tangential gradient is A times the tangential part of a."""
    a, direction = directions(1, 6)[0], directions(1, 6, seed=1)
    raw = (3 * direction).expand(40_000, 6).clone().requires_grad_()
    mean = torch.nn.functional.normalize(raw, dim=1)
    x = vmf.sample(mean, torch.full((40_000,), 4.0, dtype=float64), 1, generator=seeded())[0]
    (slopes,) = torch.autograd.grad((x @ a).sum(), raw)
    length = vmf.mean_resultant_length(torch.tensor(4.0, dtype=float64), 6)
    expected = length * (a - (a @ direction[0]) * direction[0]) / 3
    error = 5 * slopes.std(0) / 40_000**0.5
    assert bool(((slopes.mean(0) - expected).abs() < error).all())


def test_gradients_by_finite_differences_of_the_construction() -> None:
    """With the random numbers held, a sample is a smooth function of the mean."""
    kappa = torch.tensor([0.5, 40.0], dtype=float64)

    def draw(raw: Tensor) -> Tensor:
        return vmf.sample(torch.nn.functional.normalize(raw, dim=1), kappa, 2, generator=seeded())

    assert torch.autograd.gradcheck(draw, (directions(2, 4).requires_grad_(),), rtol=1e-5)
