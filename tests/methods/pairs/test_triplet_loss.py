"""The losses of points that triplets are compared with, and distances between distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import vmf
from laplacian_metric.core.embedding import StochasticEmbedding
from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.methods.pairs.triplet_loss import (
    TripletLoss,
    difference_covariance,
    expected_distances,
    mean_and_spread,
    residuals,
    squared_distances,
    triplet_hinge,
    triplet_regression,
)
from laplacian_metric.methods.pairs.triplet_mining import Triplets, pairwise

float64 = torch.float64


def points(count: int = 8, dim: int = 3, seed: int = 0) -> tuple[Tensor, Triplets]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=generator, dtype=float64)
    return x, Triplets(*torch.randint(count, (3, 12), generator=generator))


def test_the_hinge_is_torchs_of_squared_distances() -> None:
    x, (a, p, n) = points()
    loss = triplet_hinge(pairwise(x), Triplets(a, p, n), 0.3)
    expected = nn.functional.triplet_margin_with_distance_loss(
        x[a], x[p], x[n], margin=0.3, distance_function=lambda u, v: (u - v).square().sum(1)
    )
    torch.testing.assert_close(loss, expected)


def test_the_regression_is_the_plain_loop() -> None:
    x, triplets = points()
    noise = 0.1 + torch.rand(8, dtype=float64)
    total = 0.0
    for a, p, n in zip(*(index.tolist() for index in triplets), strict=True):
        r = max(0.0, float((x[a] - x[p]).square().sum() - (x[a] - x[n]).square().sum()) + 0.3)
        s = float(noise[a] + noise[p] + noise[n]) / 3
        total += (r**2 / s + math.log(s)) / 2
    assert float(triplet_regression(pairwise(x), noise, triplets, 0.3)) == pytest.approx(total / 12)
    assert torch.autograd.gradcheck(
        lambda x, s: triplet_regression(pairwise(x), s, triplets, 0.3),
        (x.requires_grad_(), noise.requires_grad_()),
    )


def test_the_best_noise_is_the_squared_residual() -> None:
    x = torch.tensor([[0.0], [2.0], [1.0]], dtype=float64)
    triplets = Triplets(*torch.tensor([[0], [1], [2]]))
    best = float(residuals(pairwise(x), triplets, 0.5)) ** 2
    noise = torch.full((3,), best, dtype=float64, requires_grad=True)
    (slope,) = torch.autograd.grad(triplet_regression(pairwise(x), noise, triplets, 0.5), noise)
    torch.testing.assert_close(slope, torch.zeros(3, dtype=float64))


def test_without_triplets_nothing_is_learned() -> None:
    x, _ = points()
    noise = torch.ones(8, dtype=float64, requires_grad=True)
    none = Triplets(*torch.zeros(3, 0, dtype=torch.int64))
    x.requires_grad_()
    for value in (triplet_hinge(pairwise(x), none, 0.1), triplet_regression(pairwise(x), noise, none, 0.1)):
        assert float(value.detach()) == 0
        for gradient in torch.autograd.grad(value, [x, noise], allow_unused=True):
            assert gradient is None or not bool(gradient.any())


# --- where a loss over pairs is taken ---


def test_as_a_loss_of_pairs_it_is_the_mean_over_hard_triplets() -> None:
    x, _ = points(9)
    labels = torch.arange(9) % 3
    z = nn.functional.normalize(x, dim=1)
    losses = []
    for a in range(9):
        for p in range(9):
            for n in range(9):
                if a != p and labels[a] == labels[p] != labels[n]:
                    r = float((z[a] - z[p]).square().sum() - (z[a] - z[n]).square().sum()) + 0.2
                    losses += [r] if r >= 0 else []
    loss = TripletLoss(margin=0.2, negatives=9)
    assert float(loss(x, Pairs.from_labels(labels))) == pytest.approx(sum(losses) / len(losses))
    assert float(loss(3 * x, Pairs.from_labels(labels))) == pytest.approx(sum(losses) / len(losses))
    assert float(loss(x, Pairs.from_labels(torch.zeros(9, dtype=torch.int64)))) == 0


def test_a_choice_of_pairs_and_a_curvature_are_refused() -> None:
    x, _ = points(4)
    triplets = tuple(torch.tensor([i]) for i in (0, 1, 2))
    with pytest.raises(ValueError, match="miner"):
        TripletLoss()(x, Pairs.from_indices(triplets, 4))
    with pytest.raises(NotImplementedError, match="no curvature"):
        TripletLoss().output_hessian(x, Pairs.from_labels([0, 0, 1, 1]))
    for option, value in (("margin", -1), ("negatives", 0)):
        with pytest.raises(ValueError, match=option):
            TripletLoss(**{option: value})
    assert ContrastiveLoss().negative_weight == TripletLoss().negative_weight


# --- distances between distributions ---


@pytest.mark.statistical
@pytest.mark.parametrize("family", ["gaussian", "vmf"])
def test_expected_distances_and_covariances_are_those_of_draws(family: str) -> None:
    """50,000 draws; 5 standard errors are allowed."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(5, 3, generator=generator, dtype=float64)
    spread = 0.2 + torch.rand(5, generator=generator, dtype=float64)
    if family == "gaussian":
        e = StochasticEmbedding.from_gaussians(Gaussians(mean, spread[:, None].expand_as(mean)))
        draws = e.gaussians.sample(50_000, generator=generator)
    else:
        z = nn.functional.normalize(mean, dim=1)
        e = StochasticEmbedding(z, z, 5 * spread, 1 / spread)
        draws = vmf.sample(z, 5 * spread, 50_000, generator=generator)
    queries, gallery = e[torch.arange(2)], e[torch.arange(2, 5)]
    distances = expected_distances(*mean_and_spread(queries), *mean_and_spread(gallery))
    squares = (draws[:, :2, None] - draws[:, None, 2:]).square().sum(3)
    assert bool(((squares.mean(0) - distances).abs() < 5 * squares.std(0) / 50_000**0.5).all())
    for expected in (False, True):
        if expected:
            nearest = distances.argmin(1)
        else:
            at = mean if family == "gaussian" else e.point
            nearest = squared_distances(at[:2], at[2:]).argmin(1)
        covariance = difference_covariance(queries, gallery, expected=expected)
        for q in range(2):
            difference = draws[:, q] - draws[:, 2 + nearest[q]]
            assert float(covariance[q]) == pytest.approx(float(difference.var(0).sum()), rel=0.03)


def test_the_expected_distance_prefers_the_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    mean = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.1]])
    variance = torch.tensor([0.1, 1.0, 0.1])[:, None].expand_as(mean)
    e = StochasticEmbedding.from_gaussians(Gaussians(mean + 1, variance))
    first, rest = e[slice(0, 1)], e[slice(1, 3)]
    assert float(difference_covariance(first, rest)[0]) == pytest.approx(2.2)
    assert float(difference_covariance(first, rest, expected=True)[0]) == pytest.approx(0.4)
    whole = difference_covariance(e, rest)
    monkeypatch.setattr("laplacian_metric.methods.pairs.triplet_loss.ENTRIES_AT_ONCE", 2)
    assert torch.equal(difference_covariance(e, rest), whole)


@pytest.mark.parametrize("dim", [2, 3, 64])
def test_large_concentrations_keep_the_digits_of_their_spread(dim: int) -> None:
    """For kappa far above D, the trace of the covariance is (D - 1) / kappa."""
    kappa = torch.tensor([1e6, 1e7, 1e8, 1e12])
    z = torch.eye(dim)[:1].expand(4, dim)
    spread = mean_and_spread(StochasticEmbedding(z, z, kappa, 1 / kappa))[1]
    torch.testing.assert_close(spread, (dim - 1) / kappa, rtol=2e-4, atol=0)


def test_certain_points_have_no_covariance() -> None:
    z = torch.eye(3)
    sure = torch.full((3,), torch.inf)
    e = StochasticEmbedding(z, z, sure, 1 / sure)
    assert not bool(difference_covariance(e, e).any())
