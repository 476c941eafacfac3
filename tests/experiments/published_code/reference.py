"""The published forms in plain loops, written from what they do; each is wrong in the way that its name says."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laplacian_metric.encoder import Encoder

float64 = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=float64)


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


@dataclass(frozen=True)
class LastLayer:
    """u = W h + b of N images with labels."""

    features: Tensor
    weight: Tensor
    bias: Tensor
    labels: Tensor

    @staticmethod
    def random(
        num: int, width: int, dim: int, classes: int, spread: float | None = None, seed: int = 0
    ) -> LastLayer:
        """Features that are noise, or clusters of a class each with noise of this ``spread``."""
        labels = torch.arange(num) % classes
        features = normal(num, width, seed=seed)
        if spread is not None:
            features = normal(classes, width, seed=seed + 1)[labels] + spread * features
        weight, bias = normal(dim, width, seed=seed + 2) / width**0.5, 0.3 * normal(dim, seed=seed + 3)
        return LastLayer(features, weight, bias, labels)

    @property
    def u(self) -> Tensor:
        return self.features @ self.weight.T + self.bias

    @property
    def inputs(self) -> Tensor:
        """x = [h, 1]."""
        return torch.cat([self.features, torch.ones(len(self.features), 1, dtype=float64)], dim=1)


def half_square(both: Tensor) -> Tensor:
    """|z_i - z_j|^2/2 of two raw embeddings (2, Z)."""
    z = unit(both)
    return (z[0] - z[1]).square().sum() / 2


def pair_hessian(both: Tensor, distance: str) -> Tensor:
    """The Hessian (2, Z, 2, Z) of half the squared distance of two embeddings, by autograd."""
    if distance == "arccos":
        return torch.autograd.functional.hessian(half_square, both)
    return torch.autograd.functional.hessian(lambda v: (v[0] - v[1]).square().sum() / 2, both)


def output_hessian(
    u: Tensor,
    labels: Tensor,
    distance: str,
    approximation: str,
    *,
    margin: float,
    weight: float = 0.5,
    flip_cross: bool,
    curve_inactive: bool,
) -> Tensor:
    """M (N, Z, N, Z) over all pairs, one after the other: 2(1-w) average of positives - 2w average of negatives."""
    if distance == "euclidean":  # that of the points, pulled back by the norm
        of_points = output_hessian(
            unit(u), labels, "no norm", approximation,
            margin=margin, weight=weight, flip_cross=False, curve_inactive=curve_inactive,
        )  # fmt: skip
        jacobian = torch.autograd.functional.jacobian(unit, u)
        return torch.einsum("abnk,abcd,cdml->nkml", jacobian, of_points, jacobian)
    num, dim = u.shape
    pairs = list(itertools.combinations(range(num), 2))
    same = [bool(labels[i] == labels[j]) for i, j in pairs]
    weights = {True: 2 * (1 - weight) / max(1, sum(same)), False: -2 * weight / max(1, len(same) - sum(same))}
    if approximation == "positive":
        weights = {True: 1 / max(1, sum(same)), False: 0.0}
    matrix = torch.zeros(num, dim, num, dim, dtype=u.dtype)
    for (i, j), positive in zip(pairs, same, strict=True):
        points = u if distance == "no norm" else unit(u)
        if not positive and not curve_inactive and (points[i] - points[j]).norm() >= margin:
            continue
        blocks = weights[positive] * pair_hessian(u[[i, j]], distance)
        cross = -blocks[0, :, 1] if flip_cross and distance == "arccos" else blocks[0, :, 1]
        matrix[i, :, i] += blocks[0, :, 0]
        matrix[j, :, j] += blocks[1, :, 1]
        if approximation != "fixed":
            matrix[i, :, j] += cross
            matrix[j, :, i] += cross.T
    if approximation == "clipped":
        values, vectors = torch.linalg.eigh(matrix.reshape(num * dim, -1))
        matrix = ((vectors * values.clamp(min=0)) @ vectors.T).view_as(matrix)
    return matrix


def diagonal(matrix: Tensor, inputs: Tensor) -> Tensor:
    """diag(J^T M J) in [W | b], (Z, H + 1)."""
    return torch.einsum("nkmk,nh,mh->kh", matrix, inputs, inputs)


def every_triplet(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All (anchor, positive, negative)."""
    y = labels.tolist()
    rows = [
        (a, p, n) for a, p, n in itertools.permutations(range(len(y)), 3) if y[a] == y[p] and y[a] != y[n]
    ]
    anchor, positive, negative = torch.tensor(rows).T
    return anchor, positive, negative


def encoder_of(layer: LastLayer) -> Encoder:
    """Return an encoder of features whose head is the layer."""
    head = nn.Linear(layer.weight.shape[1], len(layer.weight), dtype=float64)
    with torch.no_grad():
        head.weight.copy_(layer.weight)
        head.bias.copy_(layer.bias)
    return Encoder(nn.Identity(), head)
