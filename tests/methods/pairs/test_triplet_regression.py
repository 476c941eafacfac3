"""Triplet regression as a method: its loss, what it learns of ambiguous images, what it embeds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods.pairs.triplet import TripletRegression, TripletRegressionLearner
from tests.methods.learning import check_nothing_is_learned, two_clusters

SETUP = Setup(ContrastiveLoss(), num_images=100)
NOTHING = FitData([], [])


def a_learner(dtype: torch.dtype = torch.float32, **options: Any) -> TripletRegressionLearner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Sequential(
            nn.Linear(2, 32, dtype=dtype), nn.ReLU(), nn.Linear(32, 32, dtype=dtype), nn.ReLU()
        )
        encoder = Encoder(backbone, nn.Linear(32, 3, dtype=dtype))
    learner = TripletRegression(**{"mining": "batch", **options}).learner([encoder], SETUP)
    assert isinstance(learner, TripletRegressionLearner)
    return learner


def test_the_loss_is_the_plain_loop() -> None:
    images, labels = two_clusters(9, 0)
    learner = a_learner(torch.float64, margin=0.4, negatives=9, variance=0.3)
    with torch.no_grad():
        learner.network.variance.linear.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    u, noise = (x.detach() for x in learner.network(images.double()))
    z = nn.functional.normalize(u)
    losses = []
    for a in range(9):
        for p in range(9):
            for n in range(9):
                if a != p and labels[a] == labels[p] != labels[n]:
                    r = float((z[a] - z[p]).square().sum() - (z[a] - z[n]).square().sum()) + 0.4
                    s = float(noise[a] + noise[p] + noise[n]) / 3
                    losses.append(max(r, 0) ** 2 / (2 * s) + math.log(s) / 2)
    assert float(noise.std()) > 0.01
    assert float(learner.loss(images.double(), labels).detach()) == pytest.approx(sum(losses) / len(losses))


def test_embeddings_have_their_noise_shared_out_over_the_dimensions() -> None:
    learner = a_learner(variance=0.6)
    images, _ = two_clusters(10, 0)
    e = learner.embedder(NOTHING).embed(images)
    torch.testing.assert_close(e.uncertainty, torch.full((10,), 0.6))
    torch.testing.assert_close(e.variance, torch.full((10, 3), 0.2))
    torch.testing.assert_close(e.point, nn.functional.normalize(learner.points(images).detach()))


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0], [4]])
def test_without_a_triplet_nothing_is_learned(labels: list[int]) -> None:
    check_nothing_is_learned(a_learner(), labels)
