"""Train the demo's network on the embedded sample, and measure how well its embeddings retrieve."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.data import ImageSet
from laplacian_metric.demo.settings import BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY
from laplacian_metric.encoder.networks import fashion_network

OnStep = Callable[[int, int, float], None]
OnStage = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Training:
    """A trained network and how its training went: the loss of every step and the time it took."""

    backbone: nn.Sequential
    head: nn.Linear
    losses: tuple[float, ...]
    steps_per_epoch: int
    seconds: float


def train(
    sample: ImageSet, loss: ContrastiveLoss, epochs: int, seed: int, on_step: OnStep | None = None
) -> Training:
    """Train the FashionMNIST network with all pairs of every shuffled batch.

    Args:
        sample: the training images.
        loss: the pair loss.
        epochs: how often every image is seen.
        seed: decides the initial weights and the order of the images.
        on_step: called after every step with the number of steps done, their total, and the loss of the step.
    """
    if epochs < 1:
        raise ValueError(f"epochs is {epochs}; it must be at least 1")
    backbone, head = fashion_network(seed=seed)
    network = nn.Sequential(backbone, head)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(seed)
    images, labels = sample.floats(), sample.labels
    steps_per_epoch = -(-len(sample) // BATCH_SIZE)
    losses: list[float] = []
    begin = time.perf_counter()
    for _ in range(epochs):
        for batch in torch.randperm(len(sample), generator=generator).split(BATCH_SIZE):
            value = loss(network(images[batch]), Pairs.from_labels(labels[batch]))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.item())
            if on_step is not None:
                on_step(len(losses), epochs * steps_per_epoch, losses[-1])
    seconds = time.perf_counter() - begin
    return Training(backbone.eval(), head.eval(), tuple(losses), steps_per_epoch, seconds)


@torch.no_grad()
def extract_features(backbone: nn.Module, images: torch.Tensor, batch_size: int = 250) -> torch.Tensor:
    """The features of a frozen backbone, (N, H), computed in batches."""
    return torch.cat([backbone(batch) for batch in images.split(batch_size)])
