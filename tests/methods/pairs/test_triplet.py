"""The triplet loss of points as a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.pairs.triplet import PlainTripletLearner, Triplet
from laplacian_metric.training import TrainingOptions, load_best, train
from tests.methods.learning import check_nothing_is_learned

SETUP = Setup(ContrastiveLoss(), num_images=100)
NOTHING = FitData([], [])


def a_learner(dtype: torch.dtype = torch.float32, **options: Any) -> PlainTripletLearner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Sequential(nn.Linear(2, 32, dtype=dtype), nn.ReLU())
        encoder = Encoder(backbone, nn.Linear(32, 3, dtype=dtype))
    learner = Triplet(**{"mining": "batch", **options}).learner([encoder], SETUP)
    assert isinstance(learner, PlainTripletLearner)
    return learner


def clusters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    return torch.tensor([[1.0, 1.0], [1.0, -1.0]])[labels] + 0.4 * torch.randn(
        count, 2, generator=generator
    ), labels


def test_the_loss_is_the_plain_loop() -> None:
    images, labels = clusters(9, 0)
    for only_hard in (None, True):
        learner = a_learner(torch.float64, margin=0.4, negatives=9, only_hard=only_hard)
        z = nn.functional.normalize(learner.points(images.double())).detach()
        losses = []
        for a in range(9):
            for p in range(9):
                for n in range(9):
                    if a != p and labels[a] == labels[p] != labels[n]:
                        r = float((z[a] - z[p]).square().sum() - (z[a] - z[n]).square().sum()) + 0.4
                        losses += [max(r, 0)] if r >= 0 or not only_hard else []
        expected = sum(losses) / len(losses)
        assert float(learner.loss(images.double(), labels).detach()) == pytest.approx(expected)


@pytest.mark.parametrize("options", [{"mining": "cache", "cache": 50}, {"mining": "batch"}])
def test_two_clusters_are_found(options: dict[str, Any], tmp_path: Path) -> None:
    learner = a_learner(margin=0.5, **options)
    images, validation = (Dataset(*clusters(200, seed)) for seed in (0, 1))
    training = TrainingOptions(epochs=2, batch_size=10, optimizer="adam", learning_rate=1e-2)  # type: ignore[arg-type]
    history = train(learner, images, validation, training, tmp_path)
    assert history.history[-1]["map@1"] > 0.95
    load_best(learner, tmp_path)
    embedder = learner.embedder(FitData(images, validation))
    e = embedder.embed(validation.inputs, samples=2)
    assert not bool(e.uncertainty.any())
    assert e.samples is not None
    assert torch.equal(e.samples[0], e.point)
    assert embedder.similarity(e, e) is None


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0], [4]])
def test_without_a_triplet_nothing_is_learned(labels: list[int]) -> None:
    check_nothing_is_learned(a_learner(), labels)
