"""The triplet loss of points, and its regression, as methods: their losses by plain loops, and what they embed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.generators import seeded
from tests.methods.learning import NOTHING, check_nothing_is_learned, encoder_of, learner_of, two_clusters


def a_learner(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    return learner_of(name, encoder_of(dtype=dtype), **{"mining": "batch", **options})


def clusters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % 2
    centres = torch.tensor([[1.0, 1.0], [1.0, -1.0]])[labels]
    return centres + 0.4 * torch.randn(count, 2, generator=seeded(seed)), labels


def residuals(z: Tensor, labels: Tensor, margin: float) -> list[tuple[tuple[int, int, int], float]]:
    """|a - p|^2 - |a - n|^2 + margin of every triplet."""
    found = []
    for a in range(len(z)):
        for p in range(len(z)):
            for n in range(len(z)):
                if a != p and labels[a] == labels[p] != labels[n]:
                    r = float((z[a] - z[p]).square().sum() - (z[a] - z[n]).square().sum()) + margin
                    found.append(((a, p, n), r))
    return found


@pytest.mark.parametrize("only_hard", [None, True])
def test_the_loss_is_the_plain_loop(only_hard: bool | None) -> None:
    images, labels = clusters(9, 0)
    learner = a_learner("triplet", torch.float64, margin=0.4, negatives=9, only_hard=only_hard)
    z = nn.functional.normalize(learner.points(images.double())).detach()
    losses = [max(r, 0) for _, r in residuals(z, labels, 0.4) if r >= 0 or not only_hard]
    value = float(learner.loss(images.double(), labels).detach())
    assert value == pytest.approx(sum(losses) / len(losses))


def test_the_regression_is_the_plain_loop() -> None:
    images, labels = two_clusters(9, 0)
    learner = a_learner("triplet-regression", torch.float64, margin=0.4, negatives=9, variance=0.3)
    with torch.no_grad():
        learner.network.variance.linear.weight.normal_(0, 0.3, generator=seeded())
    u, noise = (x.detach() for x in learner.network(images.double()))
    losses = []
    for (a, p, n), r in residuals(nn.functional.normalize(u), labels, 0.4):
        s = float(noise[a] + noise[p] + noise[n]) / 3
        losses.append(max(r, 0) ** 2 / (2 * s) + math.log(s) / 2)
    assert float(noise.std()) > 0.01
    assert float(learner.loss(images.double(), labels).detach()) == pytest.approx(sum(losses) / len(losses))


def test_embeddings_have_their_noise_shared_out_over_the_dimensions() -> None:
    learner = a_learner("triplet-regression", variance=0.6)
    images, _ = two_clusters(10, 0)
    e = learner.embedder(NOTHING).embed(images)
    torch.testing.assert_close(e.uncertainty, torch.full((10,), 0.6))
    torch.testing.assert_close(e.variance, torch.full((10, 3), 0.2))
    torch.testing.assert_close(e.point, nn.functional.normalize(learner.points(images).detach()))


@pytest.mark.parametrize("name", ["triplet", "triplet-regression", "btl"])
@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0], [4]])
def test_without_a_triplet_nothing_is_learned(name: str, labels: list[int]) -> None:
    learner = learner_of(name, encoder_of(), mining="batch")
    check_nothing_is_learned(learner, labels)
