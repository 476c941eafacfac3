"""Gaussians of raw embeddings: the three forms of a covariance against the dense one, and against draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric import vmf
from laplacian_metric.core.gaussian import Gaussians

float64 = torch.float64
close = torch.testing.assert_close


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=float64)


def _diagonal(mean: Tensor, values: Tensor, seed: int) -> Gaussians:
    return Gaussians(mean, values)


def _shared_axes(mean: Tensor, values: Tensor, seed: int) -> Gaussians:
    dim = mean.shape[1]
    return Gaussians(mean, values, torch.linalg.qr(normal(dim, dim, seed=seed)).Q)


def _whole(mean: Tensor, values: Tensor, seed: int) -> Gaussians:
    axes = torch.linalg.qr(normal(*mean.shape, mean.shape[1], seed=seed)).Q
    covariance = (axes * values[:, None, :]) @ axes.mT
    return Gaussians(mean, (covariance + covariance.mT) / 2)


Make = Callable[[Tensor, Tensor, int], Gaussians]
FORMS: dict[str, Make] = {"diagonal": _diagonal, "shared axes": _shared_axes, "whole": _whole}
every_form = pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)


def random(make: Make, num: int = 4, dim: int = 3, seed: int = 0, spread: float = 1.0) -> Gaussians:
    values = spread * normal(num, dim, seed=seed + 1).square()
    return make(normal(num, dim, seed=seed), values, seed + 2)


def dense(gaussians: Gaussians) -> Tensor:
    """The covariances, from a loop over images and axes."""
    covariances = []
    for variance in gaussians.variance:
        if variance.ndim == 2:
            covariances.append(variance)
            continue
        axes = torch.eye(gaussians.dim, dtype=float64) if gaussians.axes is None else gaussians.axes
        terms = [value * torch.outer(axis, axis) for value, axis in zip(variance, axes.T, strict=True)]
        covariances.append(torch.stack(terms).sum(0))
    return torch.stack(covariances) if covariances else normal(0, gaussians.dim, gaussians.dim, seed=0)


@every_form
@settings(max_examples=25)
@given(num=st.integers(0, 4), dim=st.integers(2, 8), exponent=st.floats(-8, 4), seed=st.integers(0, 2**31))
def test_every_form_is_its_covariance(make: Make, num: int, dim: int, exponent: float, seed: int) -> None:
    spread = 10.0**exponent
    gaussians = random(make, num, dim, seed, spread)
    covariance = dense(gaussians)
    assert (len(gaussians), gaussians.dim) == (num, dim)
    close(gaussians.covariance, covariance, rtol=1e-10, atol=1e-13 * spread)
    assert torch.equal(gaussians.covariance, gaussians.covariance.mT)
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    close(gaussians.marginal_variance, diagonal, rtol=1e-10, atol=1e-13 * spread)
    for refine in (0, 3):
        directions = gaussians.direction(refine=refine)
        expected = vmf.projected_normal(gaussians.mean, gaussians.covariance, refine=refine)
        close(directions.variance, expected.variance, rtol=1e-6, atol=0)
        close(directions.length, expected.length, rtol=1e-6, atol=0)
        close(directions.kappa, expected.kappa, rtol=1e-5, atol=0)
        close(directions.mean, expected.mean, rtol=0, atol=1e-6)


@pytest.mark.statistical
@every_form
def test_samples_and_their_direction(make: Make) -> None:
    """k = 40,000 draws: their mean and covariance, whitened, are off by at most 5 standard errors; so is the
    mean of u/|u|, whose components have a variance below 1, from length times mean."""
    k = 40_000
    gaussians = random(make, num=3, dim=4, seed=5, spread=0.7)
    draws = gaussians.sample(k, generator=torch.Generator().manual_seed(0))
    assert draws.shape == (k, 3, 4)
    assert torch.equal(draws, gaussians.sample(k, generator=torch.Generator().manual_seed(0)))
    root = torch.linalg.cholesky(dense(gaussians))
    white = torch.linalg.solve_triangular(root, (draws - gaussians.mean)[..., None], upper=False)[..., 0]
    close(white.mean(0), torch.zeros(3, 4, dtype=float64), rtol=0, atol=5 / math.sqrt(k))
    # The images are independent as well: one covariance over all 12 numbers.
    flat = white.flatten(1)
    close(flat.T @ flat / k, torch.eye(12, dtype=float64), rtol=0, atol=5 * math.sqrt(2 / k))
    direction = gaussians.direction()
    average = torch.nn.functional.normalize(draws, dim=2).mean(0)
    expected = direction.length[:, None] * direction.mean
    close(average, expected, rtol=0, atol=5 / math.sqrt(k))


@every_form
def test_rows(make: Make) -> None:
    gaussians = random(make)
    mask = torch.tensor([True, False, False, True])
    indices = torch.tensor([3, 0, 3])
    cases = [
        (0, [0]),
        (2, [2]),
        (-1, [3]),
        (-4, [0]),
        (torch.tensor(1), [1]),
        (slice(1, None), [1, 2, 3]),
        (slice(None, None, 2), [0, 2]),
        (slice(0, 0), []),
        (mask, [0, 3]),
        (indices, [3, 0, 3]),
    ]
    for rows, expected in cases:
        some = gaussians[rows]
        assert len(some) == len(expected)
        assert some.axes is gaussians.axes
        assert torch.equal(some.mean, gaussians.mean[expected])
        assert torch.equal(some.variance, gaussians.variance[expected])
    assert [len(image) for image in gaussians] == [1, 1, 1, 1]


@every_form
def test_cat_and_to(make: Make) -> None:
    gaussians = random(make)
    again = Gaussians.cat([gaussians[:1], gaussians[1:1], gaussians[1:]])
    assert torch.equal(again.mean, gaussians.mean)
    assert torch.equal(again.covariance, gaussians.covariance)
    single = gaussians.to("cpu", torch.float32)
    assert single.mean.dtype == single.variance.dtype == single.covariance.dtype == torch.float32
    assert single.sample(2).dtype == torch.float32
    close(single.covariance.double(), gaussians.covariance, rtol=1e-5, atol=1e-6)
    close(single.direction().kappa.double(), gaussians.direction().kappa, rtol=1e-5, atol=0)
    assert gaussians.to().mean.dtype == float64


def test_equal_axes_are_joined() -> None:
    shared = random(_shared_axes)
    assert shared.axes is not None
    assert len(Gaussians.cat([shared, Gaussians(shared.mean, shared.variance, shared.axes.clone())])) == 8


@every_form
def test_no_variance_is_the_mean(make: Make) -> None:
    gaussians = random(make, spread=0.0)
    assert torch.equal(gaussians.sample(3), gaussians.mean.expand(3, -1, -1))
    direction = gaussians.direction()
    close(direction.mean, torch.nn.functional.normalize(gaussians.mean, dim=1))
    assert bool((direction.kappa > 1e20).all())


@pytest.mark.parametrize("dtype", [torch.float32, float64])
@pytest.mark.parametrize("length", [0.5, 3.0])
def test_one_axis_with_variance(dtype: torch.dtype, length: float) -> None:
    """A line through 0: the direction is one of two, and E u/|u| = erf(m/(sqrt(2) sigma)); the mean's components
    along the axes without variance are rounding errors."""
    values = torch.tensor([[4.0, 0.0, 0.0, 0.0]], dtype=dtype)
    for seed in range(5):
        axes = torch.linalg.qr(normal(4, 4, seed=seed)).Q.to(dtype)
        gaussians = Gaussians(length * axes[:, :1].T, values, axes)
        expected = torch.tensor([math.erf(length / 2 / math.sqrt(2))], dtype=dtype)
        close(gaussians.direction().length, expected, rtol=1e-5, atol=0)
        close(gaussians.direction().mean, axes[:, :1].T, rtol=0, atol=1e-6)


MEAN, EYE = torch.ones(2, 3), torch.eye(3)


@pytest.mark.parametrize(
    ("use", "error", "named"),
    [
        (lambda: Gaussians(MEAN, torch.ones(3, 2)), ValueError, "variance"),
        (lambda: Gaussians(MEAN, EYE.expand(2, 3, 3), EYE), ValueError, "variance"),
        (lambda: Gaussians(MEAN, MEAN, EYE[:, :2]), ValueError, "axes"),
        (lambda: Gaussians(torch.ones(3), torch.ones(3)), ValueError, "mean"),
        (lambda: Gaussians(MEAN.long(), MEAN), TypeError, "mean"),
        (lambda: Gaussians(MEAN, 1 - 2 * MEAN), ValueError, r"variance.*index \(0, 0\)"),
        (lambda: Gaussians(MEAN, MEAN * math.nan), ValueError, "variance"),
        (lambda: Gaussians(MEAN, MEAN / 0), ValueError, "variance"),
        (lambda: Gaussians(MEAN, MEAN).sample(0), ValueError, "k is 0"),
        (lambda: Gaussians(MEAN, -EYE.expand(2, 3, 3)).direction(), ValueError, "semi-definite"),
        (lambda: Gaussians(MEAN, MEAN)[4], IndexError, "image 4 of 2"),
        (lambda: Gaussians(MEAN, MEAN)[-3], IndexError, "image -3 of 2"),
        (lambda: Gaussians.cat([]), ValueError, "parts"),
        (lambda: Gaussians.cat([random(_diagonal), random(_whole)]), ValueError, "forms"),
        (lambda: Gaussians.cat([random(_diagonal), random(_shared_axes)]), ValueError, "axes"),
        (lambda: Gaussians.cat([random(_shared_axes), random(_diagonal)]), ValueError, "axes"),
        (lambda: Gaussians.cat([random(_shared_axes), random(_shared_axes, seed=9)]), ValueError, "axes"),
    ],
)
def test_bad_input_is_named(use: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        use()
