"""The last layer's curvature in every variant, and the same by plain autograd for a few images."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import hessian, jacrev
from torch.nn import functional as F

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal

DISTANCES = ("arccos", "euclidean")
ALL_PAIRS = ("fixed", "positive")
BATCH_PAIRS = ("full", "clipped")
REPEATS = 3


@dataclass(frozen=True, eq=False)
class Curvature:
    """The unclamped diagonal of one variant, and what it was computed from."""

    distance: str
    approximation: str
    images: int
    seconds: float
    weight: torch.Tensor
    bias: torch.Tensor

    @property
    def pairs(self) -> int:
        """All unordered pairs of the images."""
        return self.images * (self.images - 1) // 2

    @property
    def entries(self) -> torch.Tensor:
        """Weight and bias together, in one row."""
        return torch.cat([self.weight.flatten(), self.bias.flatten()])

    @property
    def negative_share(self) -> float:
        """The share of entries that a posterior would have to clamp at zero."""
        return float((self.entries < 0).double().mean())

    @property
    def trace(self) -> float:
        return float(self.entries.double().sum())


@dataclass(frozen=True)
class Agreement:
    """The largest deviation of one variant from autograd, relative to the sum of its absolute contributions."""

    distance: str
    approximation: str
    images: int
    deviation: float


def measure(
    features: torch.Tensor, labels: torch.Tensor, head: nn.Linear, margin: float, batch: torch.Tensor
) -> list[Curvature]:
    """Every variant for both distances: "fixed" and "positive" over all pairs, "full" and "clipped" on a batch.

    Args:
        features: (N, H), what goes into the head.
        labels: (N,).
        head: the trained last layer.
        margin: of the contrastive loss.
        batch: positions of the images for the variants whose cost grows with the number of active pairs.
    """
    found = []
    for distance in DISTANCES:
        loss = ContrastiveLoss(margin=margin, distance=distance)
        for approximation in (*ALL_PAIRS, *BATCH_PAIRS):
            chosen = slice(None) if approximation in ALL_PAIRS else batch
            parts, seconds = _timed(features[chosen], labels[chosen], head, loss, approximation)
            found.append(Curvature(distance, approximation, len(labels[chosen]), seconds, *parts))
    return found


def _timed(
    features: torch.Tensor, labels: torch.Tensor, head: nn.Linear, loss: ContrastiveLoss, approximation: str
) -> tuple[tuple[torch.Tensor, torch.Tensor], float]:
    """One variant with the median time of a few runs, the pairs included."""
    weight, bias = head.weight.detach(), head.bias.detach()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        pairs = Pairs.from_labels(labels)
        parts = last_layer_ggn_diagonal(features, weight, bias, pairs, loss, approximation=approximation)
        seconds.append(time.perf_counter() - begin)
    return parts, statistics.median(seconds)


def compare(features: torch.Tensor, labels: torch.Tensor, head: nn.Linear, margin: float) -> list[Agreement]:
    """Compare every variant, for a few images and in float64, with plain autograd."""
    features, weight, bias = features.double(), head.weight.detach().double(), head.bias.detach().double()
    found = []
    for distance in DISTANCES:
        loss = ContrastiveLoss(margin=margin, distance=distance)
        for approximation in (*ALL_PAIRS, *BATCH_PAIRS):
            closed = last_layer_ggn_diagonal(
                features, weight, bias, Pairs.from_labels(labels), loss, approximation=approximation
            )
            brute, scale = brute_force(features, weight, bias, labels, margin, distance, approximation)
            difference = (torch.cat([part.flatten() for part in closed]) - brute).abs()
            deviation = float((difference / scale.clamp_min(torch.finfo(scale.dtype).tiny)).max())
            found.append(Agreement(distance, approximation, len(labels), deviation))
    return found


def pair_loss(z: torch.Tensor, labels: torch.Tensor, margin: float, positive_only: bool) -> torch.Tensor:
    """The contrastive loss of all pairs of unit embeddings, written as its definition reads.

    The average of d^2 / 2 over the positive pairs and that of max(0, margin^2 - d^2) / 2 over the negative ones,
    each with the weight 1, d the distance of two embeddings.
    """
    first, second = torch.triu_indices(len(z), len(z), offset=1)
    squared = (z[first] - z[second]).square().sum(dim=1)
    same = labels[first] == labels[second]
    value = squared[same].mean() / 2
    return value if positive_only else value + (margin**2 - squared[~same]).clamp_min(0).mean() / 2


def brute_force(
    features: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    labels: torch.Tensor,
    margin: float,
    distance: str,
    approximation: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The diagonal of J^T M J with J and M from automatic differentiation, and the sum of the absolute contributions.

    "arccos" takes M in the raw embeddings, so that the norm belongs to the loss; "euclidean" takes it in the unit
    embeddings, so that the norm belongs to J. Both results have weight and bias in one row.
    """
    count, dimensions = len(features), len(weight)

    def raw(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(features, weight, bias)

    def unit(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.normalize(raw(weight, bias), dim=1)

    outputs = raw if distance == "arccos" else unit

    def value(u: torch.Tensor) -> torch.Tensor:
        z = F.normalize(u, dim=1) if distance == "arccos" else u
        return pair_loss(z, labels, margin, positive_only=approximation == "positive")

    size = count * dimensions
    middle = hessian(value)(outputs(weight, bias)).reshape(size, size)
    if approximation == "fixed":
        image = torch.arange(count).repeat_interleave(dimensions)
        middle = middle * (image[:, None] == image[None, :])
    elif approximation == "clipped":
        eigenvalues, vectors = torch.linalg.eigh(middle)
        middle = (vectors * eigenvalues.clamp_min(0)) @ vectors.T
    parts = jacrev(outputs, argnums=(0, 1))(weight, bias)
    jacobian = torch.cat([part.reshape(size, -1) for part in parts], dim=1)
    diagonal = (jacobian * (middle @ jacobian)).sum(dim=0)
    scale = (jacobian.abs() * (middle.abs() @ jacobian.abs())).sum(dim=0)
    return diagonal, scale
