"""The law of total variance on the sphere, against samples, limits and its own sum."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.core.embedding import StochasticEmbedding, at_norm, combine
from laplacian_metric.core.gaussian import Gaussians

float64 = torch.float64


def around(kappa: Tensor, dim: int = 5, seed: int = 0) -> StochasticEmbedding:
    generator = torch.Generator().manual_seed(seed)
    mean = F.normalize(torch.randn(len(kappa), dim, dtype=float64, generator=generator), dim=1).to(
        kappa.dtype
    )
    return StochasticEmbedding(mean, mean, kappa, kappa.reciprocal())


def test_samples_of_both_have_its_kappa_and_variance() -> None:
    generator = torch.Generator().manual_seed(1)
    aleatoric = around(torch.tensor([4.0, 50.0, 10.0], dtype=float64))
    epistemic = around(torch.tensor([30.0, 6.0, 10.0], dtype=float64))
    combined = combine(aleatoric, epistemic)
    count = 100_000
    directions = vmf.sample(epistemic.mean, epistemic.kappa, count, generator=generator)
    flat = directions.reshape(-1, 5)
    drawn = vmf.sample(flat, aleatoric.kappa.repeat(count), 1, generator=generator)[0].reshape(count, 3, 5)
    mean = drawn.mean(0)
    variance = 1 - mean.square().sum(1)
    torch.testing.assert_close(combined.total.uncertainty, variance, rtol=0.01, atol=0)
    torch.testing.assert_close(
        combined.total.kappa, vmf.concentration(mean.norm(dim=1), 5), rtol=0.01, atol=0
    )
    # What the network leaves open is the variance of the mean directions that images with its weights would have.
    torch.testing.assert_close(
        combined.epistemic,
        vmf.mean_resultant_length(aleatoric.kappa, 5).square() * (1 - directions.mean(0).square().sum(1)),
        rtol=0.01,
        atol=0,
    )


@settings(max_examples=50, deadline=None)
@given(
    one=st.floats(0, 1e9),
    other=st.floats(0, 1e9),
    dim=st.sampled_from([2, 3, 16, 512]),
    seed=st.integers(0, 9),
)
def test_shares_add_up_and_the_total_is_no_surer_than_either(
    one: float, other: float, dim: int, seed: int
) -> None:
    kappas = [torch.tensor([value], dtype=float64) for value in (one, other)]
    combined = combine(around(kappas[0], dim, seed), around(kappas[1], dim, seed))
    torch.testing.assert_close(combined.aleatoric + combined.epistemic, combined.total.uncertainty)
    lengths = [vmf.mean_resultant_length(kappa, dim) for kappa in kappas]
    torch.testing.assert_close(
        1 - (lengths[0] * lengths[1]).square(), combined.total.uncertainty, rtol=1e-6, atol=1e-12
    )
    assert (combined.total.kappa <= torch.minimum(*kappas) * (1 + 1e-6)).all()


def test_the_total_tells_images_apart_of_which_little_is_known() -> None:
    kappa = torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])
    total = combine(around(kappa, 512), around(kappa, 512)).total
    assert (total.uncertainty.diff() < 0).all()
    assert total.kappa.dtype == torch.float32


def test_certainty_of_one_leaves_the_other() -> None:
    kappa = torch.tensor([0.0, 3.0, 1e4], dtype=float64)
    certain = torch.full_like(kappa, math.inf)
    by_image, by_network = combine(around(kappa), around(certain)), combine(around(certain), around(kappa))
    for combined in (by_image, by_network):
        torch.testing.assert_close(combined.total.kappa, kappa, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(by_image.epistemic, torch.zeros(3, dtype=float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(by_network.aleatoric, torch.zeros(3, dtype=float64), rtol=0, atol=1e-12)


def test_small_concentrations_add_their_reciprocals_where_both_are_large() -> None:
    """In the plane around a direction both are Gaussians, whose variances add up."""
    one, other = torch.tensor([1e7], dtype=float64), torch.tensor([3e7], dtype=float64)
    kappa = combine(around(one), around(other)).total.kappa
    torch.testing.assert_close(kappa, 1 / (1 / one + 1 / other), rtol=1e-6, atol=0)


def test_spaces_may_differ_and_directions_are_the_networks() -> None:
    aleatoric, epistemic = (
        around(torch.tensor([4.0, 9.0]), dim=3),
        around(torch.tensor([4.0, 9.0]), dim=8, seed=5),
    )
    combined = combine(aleatoric, epistemic)
    assert torch.equal(combined.total.point, epistemic.point)
    assert combined.total.kappa.dtype == torch.float32
    assert len(combined) == 2
    assert len(combine(aleatoric[:0], epistemic[:0])) == 0


@pytest.mark.parametrize("whole", [False, True])
def test_at_one_norm_only_the_covariance_counts(whole: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(6, 4, dtype=float64, generator=generator)
    variance = 0.01 * torch.rand(6, 4, dtype=float64, generator=generator)
    covariance = torch.diag_embed(variance) if whole else variance
    e = StochasticEmbedding.from_gaussians(Gaussians(mean, covariance))
    scaled = StochasticEmbedding.from_gaussians(Gaussians(7 * mean, covariance))
    placed, other = at_norm(e, 2.0), at_norm(scaled, 2.0)
    torch.testing.assert_close(placed.kappa, other.kappa)
    torch.testing.assert_close(placed.point, e.point)
    assert placed.gaussians is not None
    torch.testing.assert_close(placed.gaussians.mean.norm(dim=1), torch.full((6,), 2.0, dtype=float64))
    assert torch.equal(placed.variance, e.variance)
    # Where a mean has the norm already, nothing changes.
    norm = float(mean[0].norm())
    torch.testing.assert_close(at_norm(e, norm).kappa[0], e.kappa[0])


def test_bad_input_is_named() -> None:
    two, three = around(torch.ones(2)), around(torch.ones(3))
    with pytest.raises(ValueError, match="aleatoric"):
        combine(two, three)
    with pytest.raises(ValueError, match="kappa"):
        combine(around(torch.tensor([1.0, math.nan])), two)
    for e, norm in ((around(torch.ones(2)), 1.0), (StochasticEmbedding.from_gaussians(gaussians()), 0.0)):
        with pytest.raises(ValueError, match="norm"):
            at_norm(e, norm)


def gaussians() -> Gaussians:
    return Gaussians(torch.ones(2, 3), torch.ones(2, 3))
