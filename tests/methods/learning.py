"""What tests of methods share: small data, steps of a training, and what holds of several losses."""

from __future__ import annotations

import torch
from torch import Tensor

from laplacian_metric.core.method import Learner
from laplacian_metric.core.dataset import Dataset


def two_clusters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return two clusters, and between them images whose class is drawn by lot: rows (N, 2) and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    centres = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])[labels]
    centres[: count // 4, 0] = 0
    return centres + 0.3 * torch.randn(count, 2, generator=generator), labels


def noisy(count: int, seed: int, classes: int = 6) -> Dataset:
    """Return rows whose last entry says how noisy they are, and so how likely to be among wrong neighbours."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    noise = torch.rand(count, 1, generator=generator)
    rows = torch.eye(classes)[labels] + noise * torch.randn(count, classes, generator=generator)
    return Dataset(torch.cat([rows, 2 * noise], dim=1), labels)


def step(learner: Learner, inputs: Tensor, labels: Tensor) -> float:
    """Take one step of a training that has begun, and return its loss."""
    learner.train_mode()
    loss = learner.loss(inputs, labels)
    learner.optimizer.zero_grad()
    loss.backward()
    learner.step()
    return float(loss.detach())


def epoch(learner: Learner, inputs: Tensor, labels: Tensor, steps: int) -> list[float]:
    """Take so many steps on one batch, end the epoch, and return the losses."""
    losses = [step(learner, inputs, labels) for _ in range(steps)]
    learner.end_epoch()
    return losses


def learn_two_clusters(learner: Learner, steps: int, *, learning_rate: float = 1e-2, batch: int = 40) -> None:
    """Train by Adam on random batches of 800 images of `two_clusters`."""
    learner.begin(torch.optim.Adam(learner.parameters(), lr=learning_rate), torch.Generator().manual_seed(0))
    images, labels = two_clusters(800, 0)
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        chosen = torch.randint(800, (batch,), generator=generator)
        step(learner, images[chosen], labels[chosen])


def check_bfloat16(learner: Learner) -> None:
    """Within bfloat16 the loss is a finite float32, and so is the gradient of every parameter."""
    images, labels = two_clusters(20, 0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = learner.loss(images, labels)
    assert loss.dtype == torch.float32
    loss.backward()
    for parameter in learner.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())


def check_nothing_is_learned(learner: Learner, labels: list[int]) -> None:
    """A batch without any pair or triplet has the loss 0 and no gradient."""
    loss = learner.loss(torch.randn(len(labels), 2), torch.tensor(labels))
    assert float(loss.detach()) == 0
    loss.backward()
    assert all(p.grad is None or not bool(p.grad.any()) for p in learner.parameters())
