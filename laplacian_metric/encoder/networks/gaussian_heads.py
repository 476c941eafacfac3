"""Beside the linear head that makes the mean of an embedding, a head for its one variance."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from laplacian_metric.core.arguments import at_least
from laplacian_metric.encoder import Encoder
from laplacian_metric.encoder.networks.layers import GeM
from laplacian_metric.encoder.networks.small import seeded
from laplacian_metric.encoder.networks.uncertainty import FLOOR, check_variance

# Squares of what is above do not fit into float32 once they are multiplied with a few thousand dimensions.
LARGEST = 1e12


class VarianceHead(nn.Module):
    """features (N, H) -> sigma^2 (N,): linear, ReLU, linear, softplus, and 1e-6.

    Args:
        num_features: H.
        hidden: the width between both linear layers.
        variance: about what sigma^2 is at first.
        seed: where the initial weights come from; torch's global generator without it.

    Example:
        >>> head = VarianceHead(8, hidden=4, variance=0.25, seed=0)
        >>> head(torch.zeros(2, 8)).detach()
        tensor([0.2500, 0.2500])
    """

    def __init__(self, num_features: int, *, hidden: int, variance: float, seed: int | None = None) -> None:
        super().__init__()
        at_least(1, num_features=num_features, hidden=hidden)
        check_variance(variance, LARGEST)
        with seeded(seed):
            self.first = nn.Linear(num_features, hidden)
            self.second = nn.Linear(hidden, 1)
        with torch.no_grad():
            self.first.bias.zero_()
            # The inverse of softplus.
            wanted = variance - FLOOR
            self.second.bias.fill_(wanted + math.log(-math.expm1(-wanted)))

    def forward(self, features: Tensor) -> Tensor:
        raw_variance = self.second(self.first(features).relu()).squeeze(1)
        return FLOOR + F.softplus(raw_variance).clamp(max=LARGEST)


class MeanAndVariance(nn.Module):
    """inputs -> the encoder's raw embeddings u (N, Z) and sigma^2 (N,).

    Where the backbone ends in a generalised mean over positions, the variance has one of its own, with an exponent of
    its own, over the same positions.

    Args:
        encoder: of the means.
        variance: features (N, H) -> (N,), or (N, 1) of logarithms, see ``is_log``.
        is_log: whether it is log sigma^2 that the head gives.

    Example:
        >>> encoder = Encoder(nn.Sequential(GeM()), nn.Linear(8, 3))
        >>> network = MeanAndVariance(encoder, VarianceHead(8, hidden=4, variance=0.1))
        >>> [tuple(x.shape) for x in network(torch.rand(2, 8, 5, 5))], network.pool is not None
        ([(2, 3), (2,)], True)
    """

    def __init__(self, encoder: Encoder, variance: nn.Module, *, is_log: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        last = encoder.backbone[-1] if isinstance(encoder.backbone, nn.Sequential) else encoder.backbone
        self.pool = copy.deepcopy(last) if isinstance(last, GeM) else None
        self.variance = variance.to(encoder.head.weight)
        self.is_log = is_log

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        features, other = self._features(inputs)
        u = self.encoder.head(features)
        with torch.autocast(u.device.type, enabled=False):
            predicted = self.variance(other.to(self.encoder.head.weight.dtype))
            if self.is_log:
                predicted = predicted.squeeze(1).exp()
            return u.to(predicted.dtype), predicted

    def _features(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """What goes into the head of the mean and into that of the variance, (N, H) each."""
        if self.pool is None:
            h = self.encoder.features(inputs)
            return h, h
        backbone = self.encoder.backbone
        last = backbone[-1] if isinstance(backbone, nn.Sequential) else backbone
        positions: list[Tensor] = []
        hook = last.register_forward_pre_hook(lambda _, arguments: positions.append(arguments[0]))
        try:
            h = self.encoder.features(inputs)
        finally:
            hook.remove()
        with torch.autocast(h.device.type, enabled=False):
            return h, self.pool(positions[0].to(self.encoder.head.weight.dtype))
