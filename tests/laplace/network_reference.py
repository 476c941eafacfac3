"""Small encoders, and what a posterior over their layers gives from the definition: the whole Jacobian."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hessians import ContrastiveLoss, Pairs
from laplacian_metric.encoder import Encoder
from laplacian_metric.laplace.network import NetworkLAM
from laplacian_metric.laplace.network.layers import RawNetwork
from tests.hessians.jacobians import jacobians, randomise
from tests.hessians.networks import Block, GeM, Residual, two_convolutions

LOSS = ContrastiveLoss(margin=1.2, negative_weight=0.3)
EUCLIDEAN = ContrastiveLoss(margin=1.2, distance="euclidean")
PLAIN = ContrastiveLoss(margin=2.0, distance="euclidean", normalize=False)
UNSQUARED = ContrastiveLoss(margin=1.2, negative_weight=0.3, power=1)


def random(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(dim: int = 3) -> Encoder:
    """Three linear layers for inputs (N, 4)."""
    backbone = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh())
    return randomise(Encoder(backbone, nn.Linear(6, dim)))


def convolutional(dim: int = 3) -> Encoder:
    """Two convolutions, in-place activations, pooling; for images (N, 1, 8, 8)."""
    return randomise(Encoder.from_module(two_convolutions(dim), "6"))


def residual(dim: int = 3) -> Encoder:
    """Residual blocks with batch norm, and a pooling with a parameter; for images (N, 1, 6, 6)."""
    return randomise(Encoder.from_module(Residual(dim), "whiten"))


def pooled() -> Encoder:
    """A strided residual block whose pooling has a learned exponent, six dimensions from few positions."""
    return randomise(Encoder(nn.Sequential(Block(1, 4, 2), GeM()), nn.Linear(4, 6)))


def jacobian_of(lam: NetworkLAM, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """u (N, Z), and the Jacobian (N, Z, P) of every random parameter."""
    u, jacobians_by_name = jacobians(RawNetwork(lam.encoder), inputs)
    names = [name for parameters in lam.layers.values() for name in parameters]
    return u, {name: jacobians_by_name[name] for name in names}


def covariance_of(lam: NetworkLAM, inputs: Any) -> tuple[Tensor, Tensor]:
    """u (N, Z) and J diag(S) J^T (N, Z, Z)."""
    u, jacobian = jacobian_of(lam, inputs)
    variance = lam.posterior.variance()
    parts = [torch.einsum("nkp,p,nlp->nkl", j, variance[name].flatten(), j) for name, j in jacobian.items()]
    return u, torch.stack(parts).sum(0)


def curvature_of(lam: NetworkLAM, batches: list[tuple[Any, Tensor]], approximation: str) -> dict[str, Tensor]:
    """diag(J^T M J) over the batches, each with the pair counts of all of them."""
    counted = [Pairs.from_labels(labels) for _, labels in batches]
    population = (
        sum(pairs.num_positives for pairs in counted),
        sum(pairs.num_negatives for pairs in counted),
    )
    total: dict[str, Tensor] = {}
    for (inputs, _), pairs in zip(batches, counted, strict=True):
        u, jacobian = jacobian_of(lam, inputs)
        matrix = lam.loss.output_hessian(u, pairs.with_population(population), approximation).dense()
        matrix = matrix.flatten(2).flatten(0, 1)
        for name, j in jacobian.items():
            j = j.flatten(0, 1)
            share = ((matrix @ j) * j).sum(0)
            total[name] = total[name] + share if name in total else share
    return total
