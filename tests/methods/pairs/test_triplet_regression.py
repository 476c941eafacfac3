"""Triplet regression as a method: its loss, what it learns of ambiguous images, what it embeds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from hessians import ContrastiveLoss
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods import find, make
from laplacian_metric.methods.pairs.triplet import TripletRegression, TripletRegressionLearner
from experiments.harness.sections import MethodSection
from tests.methods.learning import check_nothing_is_learned, learn_two_clusters, two_clusters

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


def trained(steps: int = 150) -> TripletRegressionLearner:
    learner = a_learner()
    learn_two_clusters(learner, steps, learning_rate=3e-3)
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


def test_two_clusters_are_found_and_what_lies_between_is_unsure() -> None:
    embedder = trained().embedder(FitData(Dataset(*two_clusters(100, 3)), []))
    images, labels = two_clusters(200, 1)
    e = embedder.embed(images)
    clear = e[torch.arange(50, 200)]
    nearest = (clear.point @ clear.point.T).fill_diagonal_(-2).argmax(1)
    assert float((labels[50:][nearest] == labels[50:]).double().mean()) > 0.97
    assert float(e.uncertainty[:50].median()) > float(e.uncertainty[50:].quantile(0.75))
    scores = embedder.scores(images)
    assert float(scores["difference covariance"][:50].median()) > float(
        scores["difference covariance"][50:].median()
    )


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


def test_state_is_the_module_alone_and_embeds_the_same() -> None:
    learner, again = trained(steps=3), a_learner()
    again.module.load_state_dict(learner.module.state_dict())
    again.restore(learner.state())
    images, _ = two_clusters(10, 2)
    one, other = (each.embedder(NOTHING).embed(images) for each in (learner, again))
    assert torch.equal(one.uncertainty, other.uncertainty)
    assert torch.equal(one.point, other.point)


def test_the_registry_and_configurations_know_it() -> None:
    assert find("triplet-regression") is TripletRegression
    section = MethodSection(name="triplet-regression", variance=0.5)  # type: ignore[call-arg]
    assert section.make() == TripletRegression(variance=0.5)
    for options, said in (({"variance": 0.0}, "variance is 0.0"), ({"mining": "some"}, "mining is 'some'")):
        with pytest.raises(ValueError, match=said):
            make("triplet-regression", **options)
