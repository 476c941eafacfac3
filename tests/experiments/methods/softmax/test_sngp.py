"""SNGP: random features of the kernel, bounded layers, and a precision that is the sum over the training images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import experiments.methods  # noqa: F401 (registers it)
from experiments.methods.softmax.sngp import SNGPLearner, bound_layers, orthogonal_features
from hessians import ContrastiveLoss
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData, Setup
from laplacian_metric.encoder import Encoder
from laplacian_metric.methods import make


def a_learner(*, features: bool = False, **options: Any) -> SNGPLearner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = nn.Identity() if features else nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        encoder = Encoder(backbone, nn.Linear(6 if features else 16, 5))
    setup = Setup(ContrastiveLoss(), num_images=120, num_classes=4)
    learner = make("sngp", **{"features": 128, **options}).learner([encoder], setup)
    return learner


def images(count: int = 120, seed: int = 0) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    return Dataset(2 * torch.eye(4, 6)[labels] + 0.5 * torch.randn(count, 6, generator=g), labels)


@pytest.mark.statistical
def test_the_random_features_approximate_the_kernel() -> None:
    g = torch.Generator().manual_seed(0)
    omega = orthogonal_features(4, 20_000, g)
    phase = 2 * torch.pi * torch.rand(20_000, generator=g)
    x = torch.randn(6, 4, generator=g)
    phi = (2 / 20_000) ** 0.5 * torch.cos(x @ omega.T + phase)
    assert torch.allclose(phi @ phi.T, torch.exp(-torch.cdist(x, x).square() / 2), atol=0.03)


def test_an_epoch_sums_the_outer_products_of_its_images() -> None:
    network = a_learner().network.train()
    phi = network.random_features(network.encoder.raw(images().inputs))
    for _ in range(2):  # the second epoch begins anew
        for part in phi.detach().split(50):
            network.accumulate(part)
        expected = torch.eye(128, dtype=torch.float64) + (phi.T @ phi).double()
        assert torch.allclose(network.precision, expected, atol=1e-4)
        network.is_complete.fill_(True)


def test_the_variance_is_that_of_the_posterior_and_falls_at_training_points() -> None:
    network = a_learner().network.eval()
    phi = network.random_features(network.encoder.raw(images().inputs)).detach()
    before = network.variance(phi)
    assert torch.allclose(before, phi.square().sum(1), atol=1e-5)  # the prior's
    network.accumulate(phi)
    after = network.variance(phi)
    inverse = torch.linalg.inv(network.precision)
    assert torch.allclose(
        after.double(), torch.einsum("nl,lk,nk->n", phi.double(), inverse, phi.double()), atol=1e-6
    )
    assert bool((after >= 0).all())
    assert bool((after < 0.5 * before).all())
    far = network.random_features(50 * torch.randn(40, 5, generator=torch.Generator().manual_seed(5)))
    assert float(network.variance(far).mean()) > 2 * float(after.mean())


def test_layers_are_bounded_and_those_below_the_bound_are_left() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)).train()
    with torch.no_grad():
        module[0].weight.mul_(100)
        module[2].weight.mul_(0.1)
    small = module[2].weight.clone()
    bound_layers(module, 2.0, torch.Generator().manual_seed(0))
    for _ in range(50):
        module(torch.randn(1, 2, 4, 4))
    assert float(torch.linalg.matrix_norm(module[0].weight.flatten(1), 2)) == pytest.approx(2.0, rel=1e-2)
    assert torch.equal(module[2].weight, small)


def test_on_features_it_is_an_rff_gp_which_needs_no_training() -> None:
    learner = a_learner(features=True)
    data = FitData(images(), images(60, 1))
    embedder = learner.embedder(data)
    assert int(learner.network.seen) == 120
    inside, unknown = (
        embedder.scores(x)["variance"].mean() for x in (images(60, 2).inputs, -3 * images(60, 2).inputs)
    )
    assert float(inside) < float(unknown)
