"""The curvature of a last layer over a data set, from autograd and dense matrices alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.accumulate import LayerData
from tests.hessians.reference import PairCounts, output_hessian

float64 = torch.float64
STRUCTURES = ["diag", "kron", "lowrank", "full"]

LOSSES = {
    "arccos": ContrastiveLoss(0.9),
    "euclidean": ContrastiveLoss(0.9, "euclidean", negative_weight=0.3),
    "no norm": ContrastiveLoss(2.0, "euclidean", normalize=False),
    "un-squared": ContrastiveLoss(0.9, power=1),
}


@dataclass(frozen=True)
class Layer:
    """A linear layer, features whose classes it tells apart, and labels."""

    features: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor

    @staticmethod
    def random(num: int, width: int, dim: int, classes: int = 3, seed: int = 0) -> Layer:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=float64)

        labels = torch.arange(num) % classes
        features = 2 * normal(classes, width)[labels] + 0.4 * normal(num, width)
        return Layer(features, labels, normal(dim, width), normal(dim))

    @property
    def u(self) -> Tensor:
        return self.features @ self.weight.T + self.bias

    def data(self, loss: ContrastiveLoss, bias: bool = True) -> LayerData:
        return LayerData(self.features, self.labels, self.u, self.weight, self.bias if bias else None, loss)

    def inputs(self, bias: bool = True) -> Tensor:
        ones = torch.ones(len(self.features), int(bias), dtype=float64)
        return torch.cat([self.features, ones], dim=1)

    def counts(self, batches: Iterable[Sequence[int]] | None = None) -> tuple[PairCounts, PairCounts]:
        """All pairs inside the batches."""
        pair_counts: tuple[PairCounts, PairCounts] = ({}, {})
        for batch in [range(len(self.labels))] if batches is None else batches:
            for i, j in itertools.combinations(sorted(map(int, batch)), 2):
                pair_counts[int(self.labels[i] != self.labels[j])][i, j] = 1
        return pair_counts

    def ggn(
        self,
        loss: ContrastiveLoss,
        approximation: str,
        counts: tuple[PairCounts, PairCounts] | None = None,
        bias: bool = True,
    ) -> Tensor:
        """G, dense: no pair joins two batches, so that one matrix over all images holds all of them."""
        matrix = output_hessian(self.u, *(counts or self.counts()), loss, approximation)
        x = self.inputs(bias)
        size = self.weight.shape[0] * x.shape[1]
        return torch.einsum("nkml,ni,mj->kilj", matrix, x, x).reshape(size, size)


def clamped(matrix: Tensor) -> Tensor:
    """The positive part."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0)) @ vectors.T


def nearest_kronecker_distance(matrix: Tensor, outputs: int) -> Tensor:
    """How far the nearest Kronecker product is, by the singular values of the rearranged matrix (Van Loan)."""
    inputs = len(matrix) // outputs
    rearranged = matrix.view(outputs, inputs, outputs, inputs).permute(0, 2, 1, 3).reshape(outputs**2, -1)
    return torch.linalg.svdvals(rearranged)[1:].square().sum().sqrt()


def network(layer: Layer, dtype: torch.dtype = float64) -> Encoder:
    """A backbone that gives a layer's features back from images of more pixels, with dropout in training."""
    width = layer.features.shape[1]
    mix = torch.linalg.qr(
        torch.randn(width + 2, width, generator=torch.Generator().manual_seed(8), dtype=float64)
    ).Q
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(width + 2, width, bias=False), nn.Dropout(0.3))
    backbone[1].weight.data = mix.T.clone()
    encoder = Encoder(backbone, nn.Linear(width, len(layer.weight)))
    encoder.head.weight.data, encoder.head.bias.data = layer.weight.clone(), layer.bias.clone()
    return encoder.to(dtype).train()


def images_of(layer: Layer, encoder: Encoder) -> Tensor:
    weight = encoder.backbone[1].weight.detach()
    return (layer.features.to(weight.dtype) @ weight)[:, None, :]
