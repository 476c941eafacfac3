"""LAM on images: a network trained on FashionMNIST, its concentrations by quadrature and by draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from hessians import ContrastiveLoss, Pairs
from laplacian_metric import LAM, Encoder
from laplacian_metric.data import load
from laplacian_metric.laplace.batching import class_balanced_batches

DIM = 3


@dataclass(frozen=True)
class Trained:
    lam: LAM
    images: Tensor  # of the test set


@pytest.fixture(scope="module")
def trained(long_form: bool) -> Trained:
    """A few dozen steps on the embedded sample, or a few on a part of it."""
    train, test = (load("sample-fashion-mnist", split) for split in ("train+validation", "test"))
    steps, images = (60, 3000) if long_form else (10, 300)
    # Classes are mixed in the sample, which has as many images of each.
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:images]
    inputs, labels = train.floats()[chosen], train.labels[chosen]
    encoder = Encoder.from_name("fashion-mnist", dim=DIM, seed=0)
    loss = ContrastiveLoss(0.7, negatives="active")
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = class_balanced_batches(labels, 100, generator=generator)[0]
        optimizer.zero_grad()
        loss(encoder.raw(inputs[batch]), Pairs.from_labels(labels[batch])).backward()
        optimizer.step()
    lam = LAM(encoder, loss)
    lam.fit(
        [(part, of) for part, of in zip(inputs.split(100), labels.split(100), strict=True)], check_mode=False
    )
    return Trained(lam, test.floats()[:: 1 if long_form else 25])


def direction_by_quadrature(mean: Tensor, variance: Tensor) -> Tensor:
    """E[u/|u|] (N, Z): (2/sqrt(pi)) int_0^inf E[u exp(-s^2 |u|^2)] ds by 200 Gauss-Legendre nodes, in float64."""
    mean, variance = mean.double(), variance.double()
    nodes, weights = np.polynomial.legendre.leggauss(200)
    total = torch.zeros_like(mean)
    scale = (mean.square().sum(1, keepdim=True) + variance.sum(1, keepdim=True)).rsqrt()
    for x, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        s = scale * (x / (1 - x)) ** 2
        width = 2 * scale * x / (1 - x) ** 3
        shrink = 1 + 2 * s.square() * variance
        exponent = -s.square() * (mean.square() / shrink).sum(1, keepdim=True)
        level = exponent.exp() * shrink.prod(1, keepdim=True).rsqrt()
        total += weight * width * level * mean / shrink
    return total * 2 / math.sqrt(math.pi)


def kappa_of_length(length: Tensor) -> Tensor:
    spread = 1 - length.square()
    return length * (DIM - 1 + spread) / spread


@pytest.mark.slow
@pytest.mark.parametrize("prior", [1.0, 100.0])
def test_concentrations(trained: Trained, prior: float) -> None:
    """Three ways to one number: the library's, a plain quadrature, and 10,000 draws of every image."""
    lam = trained.lam
    lam.prior_precision = prior
    e = lam.embed(trained.images)
    expected = direction_by_quadrature(e.gaussians.mean, e.gaussians.variance)
    length = expected.norm(dim=1)
    torch.testing.assert_close(e.kappa.double(), kappa_of_length(length), rtol=2e-4, atol=0)
    assert float((e.mean.double() * expected / length[:, None]).sum(1).min()) > 1 - 1e-6
    # The mean cosine of draws to the mean direction is its length: five standard errors.
    for part, lengths in zip(torch.arange(len(e)).split(50), length.split(50), strict=True):
        drawn = e[part].sample(10_000, generator=torch.Generator().manual_seed(2))
        cosine = (drawn * e.mean[part]).sum(2).double()
        error = cosine.std(0) / 100 + 1e-6
        assert bool(((cosine.mean(0) - lengths).abs() <= 5 * error).all())


@pytest.mark.slow
@pytest.mark.statistical
def test_joint_samples_are_these_distributions(trained: Trained) -> None:
    """Draws of the weights that all images share give each image its own distribution: five standard errors."""
    lam = trained.lam
    lam.prior_precision = 10.0
    e = lam.embed(trained.images[:20], samples=1000, generator=torch.Generator().manual_seed(3))
    length = direction_by_quadrature(e.gaussians.mean, e.gaussians.variance).norm(dim=1)  # type: ignore[union-attr]
    cosine = (e.samples * e.mean).sum(2).double()
    assert bool(((cosine.mean(0) - length).abs() <= 5 * cosine.std(0) / math.sqrt(1000)).all())
