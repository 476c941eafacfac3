"""UMM: its network, its loss from the parts, the schedule of k, and a problem that it has to solve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hessians import ContrastiveLoss
from laplacian_metric import metrics
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.info_nce import info_nce
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.self_supervised.set_losses import (
    consistency_loss,
    limit_mean,
    ranking_loss,
    sample_directions,
    spread_loss,
)
from laplacian_metric.methods.self_supervised.umm import UMM, GaussianNetwork, UMMLearner
from laplacian_metric.training import TrainingOptions, train

SETUP = Setup(ContrastiveLoss(), 100)


def _encoder(features: int = 6, dim: int = 5) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder(nn.Sequential(nn.Linear(4, features), nn.Tanh()), nn.Linear(features, dim))


def _learner(**options: Any) -> UMMLearner:
    method = UMM(**options)
    return UMMLearner(GaussianNetwork(_encoder(), method.trace, method.components), method)


def _gaussians(components: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = F.normalize(torch.randn(8, components, 5, generator=generator, dtype=torch.float64), dim=2)
    log_variance = -2 + torch.randn(8, components, 5, generator=generator, dtype=torch.float64)
    return mean, log_variance, torch.arange(4).repeat(2)


def test_means_are_unit_and_the_initial_trace_is_as_asked_for() -> None:
    for trace, components in ((0.5, 1), (0.1, 3)):
        network = GaussianNetwork(_encoder(), trace, components)
        mean, log_variance = network(torch.randn(7, 4))
        assert mean.shape == log_variance.shape == (7, components, 5)
        torch.testing.assert_close(mean.norm(dim=2), torch.ones(7, components))
        torch.testing.assert_close(
            log_variance.exp().sum(2), torch.full((7, components), trace), rtol=1e-4, atol=0
        )


def test_the_loss_is_made_of_its_parts() -> None:
    mean, log_variance, ids = _gaussians()
    learner = _learner(consistency=0.3, ranking=0.7, spread=0.2, samples=((0, 3),), bins=8)
    learner.generator = torch.Generator().manual_seed(5)
    value = learner.gaussian_loss(mean, log_variance, ids)
    drawn = sample_directions(mean[:, 0], log_variance[:, 0], 3, torch.Generator().manual_seed(5))
    logits = drawn.mean(0) @ drawn.mean(0).T / 0.1
    flat = drawn.flatten(0, 1)
    expected = (
        info_nce(logits, ids)
        + 0.2 * spread_loss(logits, ids)
        + 0.3 * consistency_loss(mean[:4], log_variance[:4], mean[4:], log_variance[4:])
        + 0.7 * ranking_loss(drawn[0], ids, flat, ids.repeat(3), torch.arange(8), bins=8)
    )
    torch.testing.assert_close(value, expected, atol=1e-12, rtol=0)


def test_no_samples_are_the_limit() -> None:
    mean, log_variance, ids = _gaussians()
    learner = _learner(consistency=0.0, ranking=0.0, samples=((0, 0),))
    z = limit_mean(mean[:, 0], log_variance[:, 0])
    torch.testing.assert_close(learner.gaussian_loss(mean, log_variance, ids), info_nce(z @ z.T / 0.1, ids))
    many = _learner(consistency=0.0, ranking=0.0, samples=((0, 20_000),))
    many.generator = torch.Generator().manual_seed(0)
    close = many.gaussian_loss(mean, log_variance, ids)
    exact = limit_mean(mean[:, 0], log_variance[:, 0], exact=True)
    assert abs(float(close - info_nce(exact @ exact.T / 0.1, ids))) < 0.02


def test_branches_of_a_mixture_share_the_samples() -> None:
    mean, log_variance, ids = _gaussians(components=2)
    learner = _learner(consistency=0.0, ranking=0.0, samples=((0, 4),), components=2)
    learner.generator = torch.Generator().manual_seed(0)
    value = learner.gaussian_loss(mean, log_variance, ids)
    drawn = sample_directions(
        mean.flatten(0, 1), log_variance.flatten(0, 1), 2, torch.Generator().manual_seed(0)
    ).view(2, 8, 2, 5)
    z = drawn.transpose(1, 2).reshape(4, 8, 5).mean(0)  # four samples of each view
    torch.testing.assert_close(value, info_nce(z @ z.T / 0.1, ids))
    ranked = _learner(consistency=0.1, ranking=1.0, samples=((0, 4),), components=2)
    assert bool(torch.isfinite(ranked.gaussian_loss(mean, log_variance, ids)))


def test_moments_of_a_mixture() -> None:
    method = UMM(components=3, samples=((0, 3),))
    learner = method.learner([_encoder()], SETUP)
    e = learner.embedder(FitData([], [])).embed(torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    means, log_variances = learner.learner.network(
        torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    )  # type: ignore[attr-defined]
    which = torch.randint(3, (200_000,), generator=torch.Generator().manual_seed(1))
    noise = torch.randn(200_000, 5, generator=torch.Generator().manual_seed(2))
    drawn = (means[0, which] + noise * (log_variances[0, which] / 2).exp()).detach()
    torch.testing.assert_close(e.gaussians.mean[0], drawn.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(e.gaussians.variance[0], drawn.var(0), atol=0.01, rtol=0)
    torch.testing.assert_close(e.uncertainty, e.gaussians.variance.sum(1))


def test_k_follows_its_schedule_over_epochs_and_checkpoints() -> None:
    learner = _learner(samples=((0, 5), (2, 3), (3, 1)))
    ks = []
    for _ in range(5):
        ks.append(learner.method.samples_at(learner.epoch))
        learner.end_epoch()
    assert ks == [5, 5, 3, 1, 1]
    resumed = _learner(samples=((0, 5), (2, 3), (3, 1)))
    resumed.restore(learner.state())
    assert resumed.epoch == 5


def test_both_views_have_relevant_samples_even_where_k_is_one() -> None:
    mean, log_variance, ids = _gaussians()
    gradients = []
    for ranking in (1.0, 0.0):
        learner = _learner(consistency=0.0, ranking=ranking, samples=((0, 1),))
        learner.generator = torch.Generator().manual_seed(0)
        leaf = mean.clone().requires_grad_()
        learner.gaussian_loss(leaf, log_variance, ids).backward()
        gradients.append(leaf.grad)
    assert float((gradients[0] - gradients[1]).abs().max()) > 1e-3


def _noisy_points() -> tuple[Dataset, torch.Tensor]:
    labels = torch.arange(200) % 10
    centres = F.normalize(torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    return Dataset(centres[labels], labels), labels


def _views(x: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    return x + 0.05 * torch.randn(x.shape, generator=generator)


def test_it_learns_pairs_of_noisy_views_and_l_n_keeps_sigma_from_shrinking(tmp_path: Path) -> None:
    """L_S alone makes tr Sigma shrink towards the deterministic limit; the consistency of views holds it up."""
    data, labels = _noisy_points()
    options = TrainingOptions(epochs=12, batch_size=50, optimizer="adam", learning_rate=1e-2)
    traces = {}
    for consistency in (0.0, 0.3):
        method = UMM(consistency=consistency, ranking=0.0, samples=((0, 4),))
        learner = method.learner([_encoder(features=32)], SETUP)
        learner.augmentation = _views  # type: ignore[attr-defined]
        folder = tmp_path / str(consistency)
        history = train(learner, data, data, options, folder, progress=False).history
        assert history[-1]["loss"] < history[0]["loss"]
        e = learner.embedder(FitData(data, data)).embed(data)
        assert metrics.recall_at_k(e.point, labels) > 0.9
        traces[consistency] = float(e.uncertainty.median())
    assert traces[0.0] < 0.8 * traces[0.3]
    assert traces[0.0] < 0.5


def test_the_published_weight_of_the_consistency_collapses(tmp_path: Path) -> None:
    """With lambda_N = 10, over D, L_S stays at the logarithm of the number of candidates: views are not told apart."""
    data, _ = _noisy_points()
    options = TrainingOptions(epochs=12, batch_size=50, optimizer="adam", learning_rate=1e-2)

    def views(x: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        return x + 0.3 * torch.randn(x.shape, generator=generator)

    drawn = torch.Generator().manual_seed(1)
    both = torch.cat([views(data.inputs[:50], drawn), views(data.inputs[:50], drawn)])
    losses = {}
    for weight in (0.1, 10.0):
        method = UMM(consistency=weight, ranking=0.0, samples=((0, 4),))
        learner = method.learner([_encoder(features=32)], SETUP)
        learner.augmentation = views  # type: ignore[attr-defined]
        train(learner, data, None, options, tmp_path / str(weight), progress=False)
        mean, log_variance = learner.learner.network(both)  # type: ignore[attr-defined]
        alone = _learner(consistency=0.0, ranking=0.0, samples=((0, 0),))
        losses[weight] = alone.gaussian_loss(mean, log_variance, torch.arange(50).repeat(2)).item()
    assert losses[10.0] > 0.97 * math.log(99)
    assert losses[0.1] < 0.85 * math.log(99)
