"""The ends of what a layer's posterior is asked for: all prior or no prior, float32's last digits, wrong numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from laplacian_metric import vmf
from laplacian_metric.laplace.layer import (
    DiagonalCurvature,
    FullCurvature,
    KroneckerCurvature,
    LayerPosterior,
    LowRankCurvature,
)
from tests.laplace.layer_cases import (
    SMALL,
    Make,
    Problem,
    dense_precision,
    every_structure,
    float64,
    gaussian,
    jacobian,
)

close = torch.testing.assert_close


@every_structure
@pytest.mark.parametrize("prior", [1e-300, 1e300])
def test_the_prior_alone(make: Make, prior: float) -> None:
    posterior = make(Problem(2, 3, 4, "zero", seed=0))[0].posterior(1e3, prior)
    assert posterior.effective_parameters() == 0
    assert posterior.log_determinant() == pytest.approx(6 * math.log(prior))
    close(posterior.marginal_variance() * prior, torch.ones(2, 3, dtype=float64))
    alone = make(SMALL)[0].posterior(0.0, 4.0)
    close(alone.marginal_variance(), torch.full((3, 4), 0.25, dtype=float64))


@every_structure
@pytest.mark.parametrize("prior", [1e6, 1e10, 1e16])
def test_effective_parameters_under_a_huge_prior(make: Make, prior: float) -> None:
    """They are tr(scale G)/prior to first order, far below the rounding of Z H'."""
    curvature = make(SMALL)[0]
    for each in (curvature, curvature.to(dtype=torch.float32)):
        expected = 2 * curvature.trace() / prior
        assert each.posterior(2.0, prior).effective_parameters() == pytest.approx(expected, rel=1e-3)


def test_rounding_is_not_clamped() -> None:
    """A rest that is the difference of a diagonal and of the squares of all its eigenvectors; products of zeros."""
    matrix = gaussian(12, 3, seed=0) @ gaussian(12, 3, seed=0).T
    for dtype in (torch.float32, float64):
        values, vectors = torch.linalg.eigh(matrix.to(dtype))
        factor = (vectors * values.clamp(min=0).sqrt()).T
        rest = matrix.to(dtype).diagonal() - factor.square().sum(0)
        curvature = LowRankCurvature(rest.view(3, 4), factor.view(12, 3, 4))
        assert (rest < 0).any()
        assert curvature.clamped == 0
        assert FullCurvature.from_matrix(matrix.to(dtype), 3).clamped == 0
        assert KroneckerCurvature.from_factors(torch.ones(3, 3, dtype=dtype), matrix.to(dtype)).clamped == 0
        tiny = torch.tensor([[1.0, -torch.finfo(dtype).eps / 2]], dtype=dtype)
        assert DiagonalCurvature(tiny).clamped == 0


@pytest.mark.parametrize("scale", [1e2, 1e5, 1e8, 1e12])
def test_low_rank_in_float32_where_the_directions_determine_the_image(scale: float) -> None:
    """The variance left is a millionth of what is subtracted from; it must be there, and be a covariance."""
    outputs, inputs, rank = 4, 5, 20
    factor = gaussian(rank, outputs, inputs, seed=0).float()
    curvature = LowRankCurvature(torch.full((outputs, inputs), 1e-9), factor)
    images, mean = gaussian(6, inputs, seed=1).float(), gaussian(6, outputs, seed=2).float()
    gaussians = curvature.posterior(scale, 1.0).predictive(images, mean)
    covariance = gaussians.covariance.double()
    values = torch.linalg.eigvalsh(covariance)
    assert bool((values >= -1e-6 * values.amax(1, keepdim=True)).all())
    flat = factor.double().flatten(1)
    dense = flat.T @ flat + 1e-9 * torch.eye(rank, dtype=float64)
    J = jacobian(images, outputs)
    expected = J @ torch.linalg.inv(dense_precision(dense, scale, 1.0)) @ J.mT
    expected = (expected + expected.mT) / 2
    size = expected.diagonal(dim1=1, dim2=2).amax()
    close(covariance, expected, rtol=1e-3, atol=float(size) * 1e-3)
    direction = vmf.projected_normal(mean, gaussians.variance)
    exact = vmf.projected_normal(mean.double(), expected)
    close(direction.kappa.double(), exact.kappa, rtol=1e-2, atol=0)


@pytest.mark.parametrize("scale", [1e14, 1e17, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, float64])
def test_low_rank_where_nothing_but_rounding_is_left(dtype: torch.dtype, scale: float) -> None:
    """Even the difference in float64 is noise then; it stays a covariance, and the image close to certain."""
    curvature = LowRankCurvature(torch.zeros(4, 5, dtype=dtype), gaussian(20, 4, 5, seed=0).to(dtype))
    images, mean = gaussian(50, 5, seed=1).to(dtype), gaussian(50, 4, seed=2).to(dtype)
    gaussians = curvature.posterior(scale, 1.0).predictive(images, mean)
    values = torch.linalg.eigvalsh(gaussians.covariance.double())
    # The prior alone gives variances of |x|^2; what is left is its rounding in float64, of a few terms.
    assert bool((values.amax(1) <= 1e-12 * images.double().square().sum(1)).all())
    assert bool((values >= -8 * torch.finfo(dtype).eps * values.amax(1, keepdim=True)).all())
    assert bool((gaussians.direction().kappa > 1e6).all())


def posterior_of(
    make: Make, scale: float = 1.0, prior: float = 1.0, dtype: torch.dtype = float64
) -> LayerPosterior:
    return make(SMALL)[0].to(dtype=dtype).posterior(scale, prior)


@every_structure
@pytest.mark.parametrize(
    ("call", "named"),
    [
        *((lambda make, prior=prior: posterior_of(make, prior=prior), "prior precision") for prior in (0.0, -1.0)),
        (lambda make: posterior_of(make, prior=math.nan), "prior precision is nan"),
        (lambda make: posterior_of(make, prior=math.inf), "prior precision is inf"),
        (lambda make: posterior_of(make, prior=1e-60, dtype=torch.float32), "prior precision is 1e-60"),
        (lambda make: posterior_of(make, prior=1e60, dtype=torch.float32), r"prior precision is 1e\+60"),
        (lambda make: posterior_of(make, scale=-2.0), "n_effective / temperature is -2.0"),
        (lambda make: posterior_of(make, scale=math.nan), "n_effective / temperature is nan"),
        (lambda make: posterior_of(make).predictive(torch.ones(2, 3), torch.ones(2, 3)), "inputs"),
    ],
)  # fmt: skip
def test_bad_numbers(make: Make, call: Callable[[Make], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call(make)


ONES, NAN = torch.ones(2, 2), torch.tensor([[1.0, math.nan], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: DiagonalCurvature(NAN), "diagonal"),
        (lambda: DiagonalCurvature(torch.ones(2)), "diagonal"),
        (lambda: KroneckerCurvature.from_factors(ONES, NAN), "inputs"),
        (lambda: LowRankCurvature(ONES, torch.stack((NAN, NAN))), "factor"),
        (lambda: LowRankCurvature(ONES, torch.ones(0, 2, 3)), "factor"),
        (lambda: FullCurvature.from_matrix(torch.eye(3), 2), "matrix"),
        (lambda: FullCurvature.from_matrix(torch.ones(1).expand(8194, 8194), 2), 'structure "full"'),
    ],
)
def test_bad_curvatures(call: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()


def test_a_conversion_keeps_the_shape() -> None:
    """bfloat16 has no 257."""
    curvature = FullCurvature(torch.ones(257), torch.eye(257), num_outputs=257)
    assert curvature.to(dtype=torch.bfloat16).shape == (257, 1)
