"""The losses of UMM against loops, torch.distributions and pytorch-metric-learning, and the claims made for them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric.core.info_nce import info_nce
from laplacian_metric.methods.self_supervised.set_losses import (
    consistency_loss,
    limit_mean,
    ranking_loss,
    sample_directions,
    spread_loss,
)


def _normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(_normal(*shape, seed=seed), dim=-1)


def test_limit_is_what_many_samples_approach() -> None:
    mean, log_variance = _unit(3, 64), torch.full((3, 64), -5.0).double()
    log_variance[1] = -7 + _normal(64, seed=1)
    drawn = sample_directions(mean, log_variance, 40_000, torch.Generator().manual_seed(0)).mean(0)
    error = drawn - limit_mean(mean, log_variance, exact=True)
    assert float(error.norm(dim=1).max()) < 4 / 200  # |error| is about 1/sqrt(samples)
    first, exact = (limit_mean(mean, log_variance, exact=value) for value in (False, True))
    lengths = first.norm(dim=1) / exact.norm(dim=1)
    assert float((lengths - 1).abs().max()) < 0.01
    assert float(F.cosine_similarity(first, exact).min()) > 0.999


def test_limit_has_gradients() -> None:
    mean, log_variance = _unit(2, 5).requires_grad_(), _normal(2, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, v: limit_mean(m, v), (mean, log_variance))


def test_a_wide_covariance_is_a_high_temperature() -> None:
    """|E z| is 1/sqrt(1 + tr Sigma) to a percent: .82 for tr Sigma = 1/2, .09 for unit variances in 128 dimensions."""
    mean = torch.eye(128).double()[:1]
    for trace, expected in ((0.5, 0.82), (128.0, 0.09)):
        length = limit_mean(mean, torch.full((1, 128), trace / 128).log().double(), exact=True).norm()
        assert abs(float(length) - expected) < 0.006


# --- L_N ---


def test_consistency_is_the_symmetric_divergence_of_torch() -> None:
    (m, n), (log_m, log_n) = (_normal(2, 6, 9, seed=seed) for seed in (0, 1))
    distributions = [torch.distributions.Normal(a, (b / 2).exp()) for a, b in ((m, log_m), (n, log_n))]
    divergence = torch.distributions.kl_divergence
    both = divergence(distributions[0], distributions[1]) + divergence(distributions[1], distributions[0])
    assert abs(float(consistency_loss(m, log_m, n, log_n) - both.mean())) <= 1e-13


def test_consistency_keeps_small_differences_in_float32() -> None:
    zero = torch.zeros(1, 4)
    small = consistency_loss(zero, zero, zero, zero + 1e-4)
    assert float(small) == pytest.approx(0.5e-8, rel=1e-5)
    assert float(torch.full((), 1e-4).cosh() - 1) == 0  # what the obvious formula makes of it


# --- L_R ---


def _exact_average_precision(z: Tensor, ids: Tensor) -> Tensor:
    """Mean average precision of every row among the others, by sorting."""
    precisions = []
    for i in range(len(z)):
        others = torch.arange(len(z)) != i
        order = (z[others] @ z[i]).argsort(descending=True)
        relevant = (ids[others][order] == ids[i]).double()
        precision = relevant.cumsum(0) / torch.arange(1, len(relevant) + 1)
        precisions.append((precision * relevant).sum() / relevant.sum())
    return torch.stack(precisions).mean()


def _noisy(images: int, views: int, noise: float, dim: int = 16) -> tuple[Tensor, Tensor]:
    ids = torch.arange(images).repeat_interleave(views)
    return F.normalize(
        _unit(images, dim)[ids] + noise * _normal(len(ids), dim, seed=1) / dim**0.5, dim=1
    ), ids


@pytest.mark.parametrize("noise", [0.5, 1.5, 3.0])
def test_ranking_with_many_bins_is_average_precision(noise: float) -> None:
    z, ids = _noisy(40, 5, noise)
    itself = torch.arange(len(z))
    fine = 1 - ranking_loss(z, ids, z, ids, itself, bins=1000)
    assert abs(float(fine - _exact_average_precision(z, ids))) <= 0.002


def test_fast_ap_is_that_of_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.losses import FastAPLoss

    z, ids = _noisy(20, 3, 1.5)
    for bins in (5, 10, 50):
        ours = ranking_loss(z, ids, z, ids, torch.arange(len(z)), bins=bins, tie_aware=False)
        assert abs(float(ours) - float(FastAPLoss(num_bins=bins)(z, ids))) <= 1e-5


def test_coarse_bins_are_biased_and_ties_less_so() -> None:
    z, ids = _noisy(40, 5, 3.0)
    itself, exact = torch.arange(len(z)), float(_exact_average_precision(z, ids))
    tied, fast = (
        1 - float(ranking_loss(z, ids, z, ids, itself, bins=10, tie_aware=t)) for t in (True, False)
    )
    assert fast < tied < exact


def test_soft_histogram_is_the_triangular_one() -> None:
    z, ids = _noisy(6, 3, 2.0)
    bins, itself = 7, torch.arange(len(z))
    squared = (2 - 2 * z @ z.T).clamp(0, 4)
    centres = torch.arange(bins + 1).double() * 4 / bins
    counts = (1 - (squared[:, :, None] - centres).abs() * bins / 4).clamp(min=0)
    counts = counts * (1 - torch.eye(len(z)).double())[:, :, None]
    h, relevant = counts.sum(1), (counts * (ids[:, None] == ids)[:, :, None]).sum(1)
    total, total_relevant = h.cumsum(1), relevant.cumsum(1)
    precision = (2 * (total_relevant - relevant) + relevant + 1) / (2 * (total - h) + h + 1)
    expected = 1 - ((relevant * precision).sum(1) / 2).mean()
    torch.testing.assert_close(ranking_loss(z, ids, z, ids, itself, bins=bins), expected, atol=1e-13, rtol=0)


def test_the_printed_ranking_loss_is_constant() -> None:
    """Eq. 12 sums the counts of relevant samples without their precision: that is how many there are, whatever z is."""
    for noise in (0.1, 2.0):
        z, ids = _noisy(6, 3, noise)
        squared = (2 - 2 * z @ z.T).clamp(0, 4)
        counts = (1 - (squared[:, :, None] - torch.linspace(0, 4, 11, dtype=z.dtype)).abs() * 2.5).clamp(
            min=0
        )
        relevant = (ids[:, None] == ids) & ~torch.eye(len(z), dtype=torch.bool)
        printed = (counts * relevant[:, :, None]).sum((1, 2)) / 2
        torch.testing.assert_close(printed, torch.ones_like(printed), atol=1e-12, rtol=0)


def test_ranking_has_right_gradients_and_no_answer_without_candidates() -> None:
    z, ids = _noisy(5, 3, 1.0, dim=4)
    itself = torch.arange(len(z))
    assert torch.autograd.gradcheck(
        lambda v: ranking_loss(v, ids, v, ids, itself), z.requires_grad_(), atol=1e-5
    )
    with pytest.raises(ValueError, match="more samples, or candidates of both views"):
        ranking_loss(z, torch.arange(15), z, torch.arange(15), itself)


# --- L_S and ISIF ---


def _two_views(images: int, dim: int, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    ids = torch.arange(images).repeat(2)
    return F.normalize(
        _unit(images, dim)[ids] + noise * _normal(2 * images, dim, seed=2) / dim**0.5, dim=1
    ), ids


def test_softmax_loss_is_that_of_pytorch_metric_learning_and_a_loop() -> None:
    from pytorch_metric_learning.distances import DotProductSimilarity
    from pytorch_metric_learning.losses import NTXentLoss

    z, ids = _two_views(6, 5)
    mean = 0.8 * z  # set means are shorter than 1, which must not be undone
    logits = mean @ mean.T / 0.1
    ours = info_nce(logits, ids, negatives="all")
    assert abs(float(ours - info_nce(logits, ids, negatives="others"))) < 1e-12
    library = NTXentLoss(0.1, distance=DotProductSimilarity(normalize_embeddings=False))
    assert abs(float(ours) - float(library(mean, ids))) <= 1e-6
    loop = sum(
        float(logits[i].masked_fill(torch.arange(12) == i, -torch.inf).logsumexp(0) - logits[i, (i + 6) % 12])
        for i in range(12)
    )
    assert abs(float(ours) - loop / 12) < 1e-12


def test_spread_is_the_loop_over_wrong_images() -> None:
    z, ids = _two_views(4, 3)
    logits = z @ z.T / 0.5
    total = 0.0
    for j in range(8):
        p = logits[j].masked_fill(torch.arange(8) == j, -torch.inf).softmax(0)
        total -= sum(float((1 - p[i]).log()) for i in range(8) if ids[i] != ids[j])
    assert float(spread_loss(logits, ids)) == pytest.approx(total / 8, abs=1e-12)


def test_spread_stays_finite_where_a_wrong_image_is_certain() -> None:
    logits = torch.zeros(4, 4, requires_grad=True)
    with torch.no_grad():
        logits[0, 1] = 200.0
    spread_loss(logits, torch.tensor([0, 1, 0, 1])).backward()
    assert bool(torch.isfinite(logits.grad).all())  # type: ignore[arg-type]


# --- what the paper says of duplicates ---


def test_the_gradient_on_a_duplicate_does_not_vanish() -> None:
    """Section 3.5 says that it does. It is larger than that of others: the duplicate looks like a positive."""
    z, ids = _two_views(64, 128, noise=1.0)
    z, ids = torch.cat([z, z[:1], z[64:65]]), torch.cat([ids, torch.tensor([64, 64])])
    leaf = z.clone().requires_grad_()
    info_nce(F.normalize(leaf) @ F.normalize(leaf).T / 0.1, ids, negatives="all").backward()
    lengths = leaf.grad.norm(dim=1)  # type: ignore[union-attr]
    duplicates = lengths[[0, 64, 128, 129]].mean()
    assert float(duplicates) > 2 * float(lengths[1:64].median())


@pytest.mark.statistical
def test_sampling_separates_no_duplicates() -> None:
    """Two identical inputs have one Gaussian: the expected force that would part them is 0 whatever the covariance."""
    dim, images, k, draws = 16, 12, 5, 400
    z, ids = _two_views(images, dim)
    z = torch.cat([z[:images], z[:1], z[images:], z[images : images + 1]])
    ids = torch.arange(images + 1).repeat(2)
    log_variance = torch.full_like(z, -3.0)
    generator, forces = torch.Generator().manual_seed(0), []
    direction = _unit(1, dim, seed=9)[0]
    for _ in range(draws):
        leaf = z.clone().requires_grad_()
        mean = sample_directions(leaf, log_variance, k, generator).mean(0)
        info_nce(mean @ mean.T / 0.1, ids, negatives="all").backward()
        gradient = leaf.grad
        forces.append((gradient[images] - gradient[0]) @ direction)
    force = torch.stack(forces)
    assert abs(float(force.mean())) <= 3 * float(force.std()) / draws**0.5
    assert float(force.std()) > 0.01  # sampling adds noise instead


def test_sampling_weakens_the_force_between_near_images() -> None:
    """At a distance of .05 the force that parts two images is the weaker, the wider their Gaussians are."""
    dim, images = 128, 64
    z, _ = _two_views(images, dim, noise=0.6)
    step = F.normalize(_unit(1, dim, seed=9) - (_unit(1, dim, seed=9) @ z[0])[:, None] * z[:1], dim=1)
    near = F.normalize(z[:1] + 0.05 * step, dim=1)
    z = torch.cat([z[:images], near, z[images:], F.normalize(z[images : images + 1] + 0.05 * step, dim=1)])
    ids = torch.arange(images + 1).repeat(2)
    forces = []
    for trace in (1e-6, 0.5, 2.0):
        leaf = z.clone().requires_grad_()
        mean = limit_mean(leaf, torch.full_like(z, trace / dim).log())
        info_nce(mean @ mean.T / 0.1, ids, negatives="all").backward()
        gradient = leaf.grad
        difference = F.normalize(near - z[:1])[0]
        forces.append(float((gradient[0] - gradient[images]) @ difference))
    assert forces[0] > forces[1] > forces[2] > 0


def test_noise_of_the_logits_falls_with_k_and_does_not_end() -> None:
    """Standard deviations of d/tau at tr Sigma = 1/2 and tau = .1: about .66, .35 and .27 for k = 1, 3 and 5."""
    mean, log_variance = _unit(2, 128).expand(2, 128), torch.full((2, 128), 0.5 / 128).log().double()
    generator, spreads = torch.Generator().manual_seed(0), []
    for k in (1, 3, 5):
        draws = [sample_directions(mean, log_variance, k, generator).mean(0) for _ in range(600)]
        values = torch.stack([draw[0] @ draw[1] for draw in draws]) / 0.1
        spreads.append(float(values.std()))
    assert spreads == pytest.approx([0.66, 0.35, 0.27], abs=0.06)
