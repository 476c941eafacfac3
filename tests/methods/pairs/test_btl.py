"""The Bayesian triplet loss as a method: its bound against draws, a problem that it has to solve, its distances."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from laplacian_metric import vmf
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData
from laplacian_metric.methods.pairs.btl import BTL, BTLLearner, negative_bound
from laplacian_metric.methods.pairs.triplet_mining import Triplets, pairwise
from laplacian_metric.training import TrainingOptions, load_best, train
from tests.methods.learning import NOTHING, encoder_of, learner_of, two_clusters

float64 = torch.float64


def a_learner(dtype: torch.dtype = torch.float32, **options: Any) -> BTLLearner:
    return learner_of("btl", encoder_of(dtype=dtype), **{"mining": "batch", "hidden": 32, **options})


# --- the loss ---


def a_batch(prior: str) -> tuple[Tensor, Tensor, Triplets]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, 40, generator=generator, dtype=float64) / 40**0.5
    if prior == "sphere":
        mean = nn.functional.normalize(mean, dim=1)
    variance = (0.3 + torch.rand(6, generator=generator, dtype=float64)) / 40
    return mean, variance, Triplets(*torch.tensor([[0, 0, 3], [1, 1, 4], [2, 3, 5]]))


@pytest.mark.statistical
@pytest.mark.parametrize("prior", ["gaussian", "sphere"])
def test_the_bound_is_that_of_draws_and_of_torchs_divergences(prior: Any) -> None:
    """20,000 draws of 40 dimensions, where the Gaussian tail is right within 0.01, and 0.0035 is the standard error."""
    mean, variance, triplets = a_batch(prior)
    if prior == "gaussian":
        noise = torch.randn(20_000, 6, 40, generator=torch.Generator().manual_seed(1), dtype=float64)
        x = mean + variance.sqrt()[:, None] * noise
        base = torch.distributions.Normal(torch.zeros(40, dtype=float64), (1 / 40) ** 0.5)
        own = torch.distributions.Normal(mean, variance.sqrt()[:, None])
        divergence = torch.distributions.kl_divergence(own, base).sum(1)
    else:
        x = vmf.sample(mean, 1 / variance, 20_000, generator=torch.Generator().manual_seed(1))
        divergence = vmf.kl(mean, 1 / variance, mean, torch.zeros_like(variance))
    squared, margin, weight = pairwise(mean), 0.2, 0.01
    for a, p, n in zip(*(index.tolist() for index in triplets), strict=True):
        tau = (x[:, a] - x[:, p]).square().sum(1) - (x[:, a] - x[:, n]).square().sum(1)
        probability = float((tau < -margin).double().mean())
        kl = float(divergence[a] + divergence[p] + divergence[n])
        one = Triplets(*torch.tensor([[a], [p], [n]]))
        method = BTL(prior=prior, margin=margin, kl_weight=weight)
        bound = float(negative_bound(mean, variance, squared, one, method))
        assert math.exp(weight * kl - bound) == pytest.approx(probability, abs=0.015)


def test_the_learners_loss_is_the_bound_of_its_distributions() -> None:
    images, labels = two_clusters(7, 0)
    for options in ({}, {"prior": "sphere"}, {"prior": "sphere", "likelihood": "gaussian"}):
        learner = a_learner(float64, negatives=7, margin=0.3, only_hard=True, kl_weight=0.1, **options)
        mean, variance = (x.detach() for x in learner.network(images.double()))
        total, count = 0.0, 0
        squared = pairwise(mean)
        for a in range(7):
            for p in range(7):
                for n in range(7):
                    same = a != p and labels[a] == labels[p] and labels[a] != labels[n]
                    if same and not float(squared[a, p]) < float(squared[a, n]) - 0.3:
                        one = Triplets(*torch.tensor([[a], [p], [n]]))
                        total += float(negative_bound(mean, variance, squared, one, learner.method))
                        count += 1
        assert float(learner.loss(images.double(), labels).detach()) == pytest.approx(total / count)
        assert count > 3


def test_both_likelihoods_on_the_sphere_agree_where_all_is_near_one_point() -> None:
    """There the sphere is flat; elsewhere the Gaussian's spread along the mean directions makes a difference."""
    mean, _, triplets = a_batch("sphere")
    for near, same in ((0.02, True), (1.0, False)):
        z = nn.functional.normalize(mean[:1] + near * mean, dim=1)
        variance = torch.full((6,), 1e-6, dtype=float64)
        exact, approximate = (
            float(
                negative_bound(z, variance, pairwise(z), triplets, BTL(prior="sphere", likelihood=likelihood))
            )  # type: ignore[arg-type]
            for likelihood in ("exact", "gaussian")
        )
        assert (exact == pytest.approx(approximate, rel=0.01)) is same


# --- what it learns ---


def test_mined_out_of_a_cache_by_the_training_loop(tmp_path: Path) -> None:
    images, validation = (Dataset(*two_clusters(200, seed)) for seed in (0, 1))
    learner = a_learner(mining="cache", cache=60, negatives=3, margin=0.5)
    options = TrainingOptions(epochs=2, batch_size=10, optimizer="adam", learning_rate=3e-3)  # type: ignore[arg-type]
    history = train(learner, images, validation, options, tmp_path)
    assert history.history[-1]["map@1"] > 0.8
    load_best(learner, tmp_path)
    assert learner.embedder(FitData(images, validation)).settings()["scale"] != 1
    with pytest.raises(ValueError, match='use mining="batch"'):
        learner.loss(images.inputs, images.labels)


# --- what it embeds ---


@pytest.mark.parametrize("prior", ["gaussian", "sphere"])
def test_embeddings_are_the_networks_distributions(prior: str) -> None:
    learner = a_learner(prior=prior, scale=2.0)
    images, _ = two_clusters(20, 0)
    e = learner.embedder(NOTHING).embed(images)
    u = learner.network.heads.encoder.raw(images).detach()
    variance = learner.network(images)[1].detach()
    torch.testing.assert_close(e.point, nn.functional.normalize(u))
    torch.testing.assert_close(e.uncertainty, variance)
    if prior == "gaussian":
        torch.testing.assert_close(e.gaussians.mean, 2 * u)
        torch.testing.assert_close(e.variance, variance[:, None].expand(-1, 3))
    else:
        torch.testing.assert_close(e.kappa, 1 / variance)
    torch.testing.assert_close(nn.functional.normalize(learner.points(images)), e.point)


@pytest.mark.parametrize("prior", ["gaussian", "sphere"])
@pytest.mark.parametrize("distance", ["euclidean", "expected"])
def test_the_similarity_is_minus_the_distance(prior: str, distance: str) -> None:
    embedder = a_learner(prior=prior, distance=distance).embedder(NOTHING)
    e = embedder.embed(two_clusters(20, 0)[0]).to(dtype=float64)
    similarity = embedder.similarity(e[torch.arange(5)], e)
    if prior == "sphere" and distance == "euclidean":
        assert similarity is None
        return
    for q in range(5):
        for g in range(20):
            if prior == "gaussian":
                expected = float((e.gaussians.mean[q] - e.gaussians.mean[g]).square().sum())
                noise = 3 * float(e.uncertainty[q] + e.uncertainty[g])
                expected += noise if distance == "expected" else 0
            else:
                lengths = vmf.mean_resultant_length(e.kappa, 3)
                expected = 2 - 2 * float(lengths[q] * lengths[g] * (e.point[q] @ e.point[g]))
            assert float(similarity[q, g]) == pytest.approx(-expected, abs=1e-6)


@pytest.mark.parametrize("prior", ["gaussian", "sphere"])
@pytest.mark.parametrize(("variance", "expected"), [(None, 1 / 3), (0.01, 0.01)])
def test_it_starts_near_the_prior(prior: str, variance: float | None, expected: float) -> None:
    found = a_learner(prior=prior, variance=variance).network(two_clusters(100, 0)[0])[1].detach()
    assert expected / 2 < float(found.median()) < 2 * expected
