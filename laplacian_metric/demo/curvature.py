"""The last layer's curvature in every variant, and the same by plain autograd for a few images."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import jacrev
from torch.nn import functional as F

from hessians import ContrastiveLoss, Pairs, last_layer_ggn_diagonal
from laplacian_metric.demo.settings import TIMING_REPEATS, TIMING_SECONDS

DISTANCES = ("arccos", "euclidean")
ALL_PAIRS = ("fixed", "positive")
BATCH_PAIRS = ("full", "clipped")


Parts = tuple[torch.Tensor, torch.Tensor | None]


def _in_one_row(parts: Parts) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts if part is not None])


@dataclass(frozen=True, eq=False)
class Curvature:
    """The unclamped diagonal of one variant, and what it was computed from."""

    distance: str
    approximation: str
    images: int
    seconds: float
    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def pairs(self) -> int:
        """All unordered pairs of the images."""
        return self.images * (self.images - 1) // 2

    @property
    def entries(self) -> torch.Tensor:
        """Weight and bias together, in one row."""
        return _in_one_row((self.weight, self.bias))

    @property
    def negative_share(self) -> float:
        """The share of entries that a posterior would have to clamp at zero."""
        return float((self.entries < 0).double().mean())

    @property
    def trace(self) -> float:
        return float(self.entries.double().sum())


@dataclass(frozen=True)
class Agreement:
    """The largest deviation of one variant from autograd over all parameters, relative to `brute_force`'s scale."""

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
) -> tuple[Parts, float]:
    """One variant with the median time of a few runs, the pairs included; what is slow is run once."""
    weight, bias = head.weight.detach(), head.bias.detach()
    seconds: list[float] = []
    while not seconds or (len(seconds) < TIMING_REPEATS and sum(seconds) < TIMING_SECONDS):
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
            difference = (_in_one_row(closed) - brute).abs()
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
    """The diagonal of J^T M J with J and M from automatic differentiation, and the scale of its rounding errors.

    "arccos" takes M in the raw embeddings, so that the norm belongs to the loss; "euclidean" takes it in the unit
    embeddings, so that the norm belongs to J. The scale of an entry is the sum of its absolute contributions; for
    "clipped" it is the largest eigenvalue of M times the squared length of J's column, since an eigendecomposition
    is exact in norm but not entry by entry. Both results have weight and bias in one row.
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
    middle = jacrev(jacrev(value))(outputs(weight, bias)).reshape(size, size)
    parts = jacrev(outputs, argnums=(0, 1))(weight, bias)
    jacobian = torch.cat([part.reshape(size, -1) for part in parts], dim=1)
    if approximation == "clipped":
        eigenvalues, vectors = torch.linalg.eigh(middle)
        clamped = eigenvalues.clamp_min(0)
        diagonal = clamped @ (vectors.T @ jacobian).square()
        return diagonal, eigenvalues.abs().max() * jacobian.square().sum(dim=0)
    if approximation == "fixed":
        image = torch.arange(count).repeat_interleave(dimensions)
        middle = middle * (image[:, None] == image[None, :])
    diagonal = (jacobian * (middle @ jacobian)).sum(dim=0)
    scale = (jacobian.abs() * (middle.abs() @ jacobian.abs())).sum(dim=0)
    return diagonal, scale
