"""Proxies: each metric against its formula, the warm start, what is refused, and a problem to solve."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from laplacian_metric import vmf
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData
from laplacian_metric.methods.spherical.proxies import Metric, ProxyLearner, log_similarity
from laplacian_metric.training import TrainingOptions, train
from tests.generators import seeded
from tests.methods.learning import encoder_of, learner_of

METRICS = get_args(Metric)
float64 = torch.float64


def distributions(count: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = seeded(seed)
    mean = F.normalize(torch.randn(count, dim, generator=generator, dtype=float64), dim=1)
    return mean, 20 * torch.rand(count, generator=generator, dtype=float64) + 1


def a_learner(num_classes: int = 3, **options: Any) -> ProxyLearner:
    return learner_of("proxies", encoder_of(4), setup={"num_classes": num_classes}, **options)


def three_clusters(count: int, seed: int) -> Dataset:
    generator = seeded(seed)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])[labels]
    return Dataset(centres + 0.4 * torch.randn(count, 2, generator=generator), labels)


def whole(images: Dataset) -> tuple[Tensor, Tensor]:
    """All inputs and labels, as one batch."""
    batches = [(batch.inputs, batch.labels) for batch in images.batches()]
    return torch.cat([inputs for inputs, _ in batches]), torch.cat(
        [labels for _, labels in batches if labels is not None]
    )


@pytest.mark.parametrize("metric", METRICS)
def test_similarities_are_their_formulas_pair_by_pair(metric: Metric) -> None:
    (mean, kappa), (direction, proxy_kappa) = distributions(5, 6, 0), distributions(3, 6, 1)
    log_scale = proxy_kappa.log()[:, None]
    axes = log_scale + 0.3 * torch.randn(3, 6, generator=seeded(2), dtype=float64)
    proxy = direction, axes if "nivmf" in metric else log_scale
    value = log_similarity(metric, (mean, kappa), proxy, samples=4, generator=seeded(3))
    z = vmf.sample(mean, kappa, 4, generator=seeded(3))
    for i in range(5):
        for c in range(3):
            one, other = (mean[i], kappa[i]), (direction[c], proxy_kappa[c])
            expected = {
                "cosine": lambda i=i, c=c: mean[i] @ direction[c],
                "l2": lambda i=i, c=c: -(kappa[i] * mean[i] - proxy_kappa[c] * direction[c]).square().sum(),
                "nivmf": lambda i=i, c=c: vmf.nivmf.log_density(mean[i : i + 1], direction[c], axes[c])[0],
                "el-vmf": lambda one=one, other=other: vmf.log_expected_likelihood(*one, *other),
                "b-vmf": lambda one=one, other=other: -vmf.bhattacharyya(*one, *other),
                "kl-vmf": lambda one=one, other=other: -vmf.kl(*one, *other),
                "el-nivmf": lambda i=i, c=c: (
                    vmf.nivmf.log_density(z[:, i], direction[c], axes[c]).exp().mean().log()
                ),
            }[metric]()
            assert float(value[i, c]) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


def test_equal_axes_are_the_isotropic_density() -> None:
    (mean, kappa), (direction, proxy_kappa) = distributions(5, 6, 0), distributions(3, 6, 1)
    log_scale = proxy_kappa.log()[:, None]
    value = log_similarity("nivmf", (mean, kappa), (direction, log_scale))
    torch.testing.assert_close(value, vmf.log_density(mean[:, None], direction, proxy_kappa))


@pytest.mark.parametrize("metric", METRICS)
def test_gradients_reach_encoder_directions_and_concentrations(metric: str) -> None:
    learner = a_learner(metric=metric)
    batch, labels = whole(three_clusters(12, 0))
    learner.loss(batch, labels).backward()
    network = learner.network
    for parameter in network.encoder.parameters():
        assert bool(parameter.grad.isfinite().all())
    assert bool(network.proxies.grad.any())
    is_learned = network.level.grad is not None and bool(network.level.grad.any())
    assert is_learned is (metric != "cosine")
    if "nivmf" in metric:
        assert bool(network.offsets.grad.any())


def test_the_first_epoch_puts_proxies_at_class_means() -> None:
    learner, images = a_learner(metric="nivmf", initial_kappa=30.0), three_clusters(30, 0)
    rows = [torch.arange(30)]
    assert learner.choose(images, rows) == rows
    inputs, labels = whole(images)
    mean, kappa = learner.network(inputs)
    expected = torch.stack([F.normalize(mean[labels == c].mean(0), dim=0) for c in range(3)])
    torch.testing.assert_close(learner.network.directions, expected)
    assert float(kappa.detach().mean()) == pytest.approx(30, rel=1e-5)
    torch.testing.assert_close(learner.network.log_scale.detach().exp(), torch.full((3, 4), 30.0))
    with torch.no_grad():
        learner.network.proxies.neg_()
    learner.choose(images, rows)  # later epochs leave them where they are
    torch.testing.assert_close(learner.network.directions, -expected)


@pytest.mark.parametrize(
    "options",
    [
        *({"metric": metric} for metric in METRICS),
        {"metric": "nivmf", "isotropic": True},
        {"anchor_weight": 0.5},
    ],
)
def test_three_clusters_are_classified(options: dict[str, Any]) -> None:
    learner, images = a_learner(**options), three_clusters(60, 0)
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    learner.begin(optimizer, seeded())
    learner.choose(images, [])
    inputs, labels = whole(images)
    losses = []
    for _ in range(60):
        loss = learner.loss(inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        learner.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    e = learner.embedder(FitData([], [])).embed(three_clusters(30, 1))
    nearest = (e.point @ learner.network.directions.detach().T).argmax(1)
    assert float((nearest == torch.arange(30) % 3).double().mean()) > 0.9
    torch.testing.assert_close(e.uncertainty, e.kappa.reciprocal())
    log_scale = learner.network.log_scale
    assert log_scale.shape == (
        3,
        4 if "nivmf" in options.get("metric", "") and not options.get("isotropic") else 1,
    )


def test_the_regulariser_is_the_published_loss_of_the_same_proxies() -> None:
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    plain, both = a_learner(metric="cosine"), a_learner(metric="cosine", anchor_weight=0.7)
    inputs, labels = whole(three_clusters(12, 0))
    published = ProxyAnchorLoss(3, 4)
    published.proxies.data = both.network.directions.detach().clone()
    expected = plain.loss(inputs, labels) + 0.7 * published(both.network(inputs)[0], labels)
    torch.testing.assert_close(both.loss(inputs, labels), expected)
    assert len(both.parameters()) == len(plain.parameters())


def test_classes_without_images_do_not_count() -> None:
    """Labels 0, 1, 2 and 4: once the proxies are warm, a fourth class without images changes nothing."""
    three, five, images = a_learner(3), a_learner(5), three_clusters(30, 0)
    inputs, labels = whole(images)
    moved = torch.where(labels == 2, 4, labels)
    three.choose(images, [])
    five.choose(Dataset(inputs, moved), [])
    torch.testing.assert_close(five.loss(inputs, moved), three.loss(inputs, labels))


def test_proxies_are_trained_faster_by_their_rate() -> None:
    """One step of Adam moves each entry by the learning rate, times `proxy_rate`."""
    moved = []
    for rate in (1.0, 100.0):
        learner = a_learner(metric="cosine", proxy_rate=rate)
        before = (rate * learner.network.proxies).detach().clone()
        optimizer = torch.optim.Adam(learner.parameters(), lr=1e-4)
        learner.loss(*whole(three_clusters(12, 0))).backward()
        optimizer.step()
        moved.append(float((rate * learner.network.proxies - before).detach().abs().median()))
    assert moved[1] / moved[0] == pytest.approx(100, rel=0.01)


def test_the_training_loop_warms_proxies_up_once(tmp_path: Path) -> None:
    learner = a_learner(metric="nivmf", initial_kappa=20.0)
    options = TrainingOptions(epochs=3, batch_size=10, learning_rate=3e-3)
    trained = train(learner, three_clusters(60, 0), three_clusters(30, 1), options, tmp_path)
    assert bool(learner.network.is_warm)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]


def test_classes_without_images_are_named() -> None:
    learner = a_learner(4)
    learner.choose(three_clusters(12, 0), [])
    with pytest.raises(ValueError, match="labels has class 3 at position 1"):
        learner.loss(torch.zeros(2, 2), torch.tensor([0, 3]))
