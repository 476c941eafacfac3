"""The non-isotropic density: its isotropic limit, its mass, its samples, gradients and precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.vmf import nivmf
from tests.generators import seeded
from tests.vmf.tables import directions

float64 = torch.float64


def log_scales(count: int, dim: int, kappa: float, spread: float, seed: int = 1) -> Tensor:
    return math.log(kappa) + spread * torch.randn(count, dim, generator=seeded(seed), dtype=float64)


def sphere_grid(steps: int) -> tuple[Tensor, Tensor]:
    """Points (M, 3) of the sphere and their areas: Gauss-Legendre in the height, even angles around it."""
    height, weight = (torch.tensor(v) for v in np.polynomial.legendre.leggauss(steps))
    angle = torch.arange(2 * steps, dtype=float64) * (math.pi / steps)
    radius = (1 - height.square()).sqrt()[:, None]
    points = torch.stack(
        [radius * angle.cos(), radius * angle.sin(), height[:, None].expand(-1, 2 * steps)], dim=2
    )
    return points.flatten(0, 1), (weight[:, None] * math.pi / steps).expand(-1, 2 * steps).flatten()


@pytest.mark.parametrize("dim", [2, 3, 16, 128, 2048])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 50.0, 1e4])
def test_equal_concentrations_are_the_isotropic_distribution(dim: int, kappa: float) -> None:
    x, mean = directions(20, dim), directions(4, dim, seed=1)
    value = nivmf.log_density(x, mean, torch.full_like(mean, math.log(kappa)))
    expected = vmf.log_density(x[:, None], mean, torch.full((4,), kappa, dtype=float64))
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-10)


@pytest.mark.parametrize(("kappa", "spread"), [(5.0, 0.3), (5.0, 1.0), (50.0, 0.3)])
def test_the_mass_on_the_sphere_is_one(kappa: float, spread: float) -> None:
    points, area = sphere_grid(400)
    density = nivmf.log_density(points, directions(3, 3), log_scales(3, 3, kappa, spread)).exp()
    torch.testing.assert_close(area @ density, torch.ones(3, dtype=float64), rtol=0, atol=1e-6)


def test_the_mass_on_the_circle_is_one() -> None:
    angle = torch.arange(20000, dtype=float64) * (2 * math.pi / 20000)
    points = torch.stack([angle.cos(), angle.sin()], dim=1)
    density = nivmf.log_density(points, directions(3, 2), log_scales(3, 2, 20.0, 1.0)).exp()
    torch.testing.assert_close(density.mean(0) * 2 * math.pi, torch.ones(3, dtype=float64), rtol=0, atol=1e-6)


@pytest.mark.statistical
@pytest.mark.parametrize(("dim", "kappa"), [(3, 10.0), (10, 30.0), (128, 60.0)])
def test_samples_have_the_mean_of_the_density(dim: int, kappa: float) -> None:
    """y = K x/|K x| of the samples has the mean cosine A(kt) to K mu, within 4 standard errors."""
    mean, log_scale = directions(3, dim), log_scales(3, dim, kappa, 0.5)
    x = nivmf.sample(mean, log_scale, 4000, generator=seeded(2))
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(4000, 3, dtype=float64))
    scaled = log_scale.exp() * mean
    kt = scaled.norm(dim=1)
    cosine = (F.normalize(log_scale.exp() * x, dim=-1) * (scaled / kt[:, None])).sum(-1)
    error = (cosine.mean(0) - vmf.mean_resultant_length(kt, dim)) / (cosine.std(0) / math.sqrt(4000))
    assert float(error.abs().max()) < 4


@pytest.mark.statistical
def test_samples_fall_where_the_density_says() -> None:
    """The share of samples in each octant of the sphere, within 4 standard errors of the density's integral."""
    mean, log_scale = directions(1, 3)[0], log_scales(1, 3, 3.0, 0.7)[0]
    x = nivmf.sample(mean, log_scale, 20000, generator=seeded(3))
    points, area = sphere_grid(200)
    density = nivmf.log_density(points, mean, log_scale).exp()
    places = torch.tensor([1, 2, 4])
    for octant in range(8):
        share = float((((x > 0) * places).sum(1) == octant).double().mean())
        expected = float((area * density)[((points > 0) * places).sum(1) == octant].sum())
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / 20000) + 1e-3


@pytest.mark.parametrize("dim", [2, 3, 16, 128])
def test_gradients(dim: int) -> None:
    def density(u: Tensor, m: Tensor, log_scale: Tensor) -> Tensor:
        return nivmf.log_density(F.normalize(u, dim=1), F.normalize(m, dim=1), log_scale)

    inputs = [directions(2, dim), directions(2, dim, seed=1), log_scales(2, dim, 8.0, 0.4)]
    assert torch.autograd.gradcheck(density, [x.requires_grad_() for x in inputs], rtol=1e-4, atol=1e-6)


def test_gradients_of_samples() -> None:
    """With the same random numbers the samples follow the direction smoothly; gradients reach the scales."""
    mean, log_scale = directions(2, 4), log_scales(2, 4, 8.0, 0.4).requires_grad_()
    (slope,) = torch.autograd.grad(
        nivmf.sample(mean, log_scale, 50, generator=seeded()).square()[..., 0].sum(), log_scale
    )
    assert bool(slope.isfinite().all())
    assert bool(
        (slope[:, 0] < 0).all()
    )  # a larger scale along an axis leaves the samples less spread along it


@pytest.mark.parametrize(("dim", "kappa"), [(3, 10.0), (128, 60.0), (512, 140.0), (2048, 1000.0)])
def test_float32_is_off_by_a_millionth_of_its_largest_term(dim: int, kappa: float) -> None:
    x, mean, log_scale = directions(30, dim), directions(5, dim, seed=1), log_scales(5, dim, kappa, 0.3)
    kt = (log_scale.exp() * mean).norm(dim=1)
    single = nivmf.log_density(x.float(), mean.float(), log_scale.float())
    assert single.dtype == torch.float32
    error = (single.double() - nivmf.log_density(x, mean, log_scale)).abs()
    assert bool((error < 1e-6 * (kt + dim)).all())


def test_one_distribution_and_several_agree() -> None:
    x, mean, log_scale = directions(5, 6), directions(3, 6, seed=1), log_scales(3, 6, 9.0, 0.3)
    together = nivmf.log_density(x, mean, log_scale)
    for c in range(3):
        torch.testing.assert_close(nivmf.log_density(x, mean[c], log_scale[c]), together[:, c])
    assert nivmf.sample(mean[0], log_scale[0], 7).shape == (7, 6)
    assert nivmf.sample(mean, log_scale, 7).shape == (7, 3, 6)
