"""A variance for every weight."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from laplacian_metric.core.gaussian import Gaussians
from laplacian_metric.laplace.layer.base import (
    EigenPosterior,
    LayerCurvature,
    Structure,
    check_curvature,
    negative_share,
    normal,
)

SQUARES_AT_ONCE = 1 << 18


class DiagonalCurvature(LayerCurvature):
    """diag(G), (Z, H').

    Args:
        diagonal: what was accumulated, (Z, H'); its negative entries are set to 0 here, once.

    Example:
        >>> curvature = DiagonalCurvature(torch.tensor([[3.0, -1.0]]))
        >>> curvature.clamped, curvature.posterior(scale=2.0, prior=1.0).marginal_variance()
        (0.5, tensor([[0.1429, 1.0000]]))
    """

    structure: ClassVar[Structure] = Structure.DIAGONAL

    def __init__(self, diagonal: Tensor, clamped: float | None = None) -> None:
        check_curvature(2, diagonal=diagonal)
        self.shape = (diagonal.shape[0], diagonal.shape[1])
        self.clamped = negative_share(diagonal, diagonal.abs().amax(), 1) if clamped is None else clamped
        self._diagonal = diagonal.clamp(min=0)

    def posterior(self, scale: float, prior: float) -> DiagonalPosterior:
        return DiagonalPosterior(self._diagonal, scale, prior, self.shape)

    def trace(self) -> float:
        return float(self._diagonal.double().sum())

    def diagonal(self) -> Tensor:
        return self._diagonal

    def tensors(self) -> dict[str, Tensor]:
        return {"diagonal": self._diagonal}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], clamped: float) -> DiagonalCurvature:
        return cls(tensors["diagonal"], clamped)


class DiagonalPosterior(EigenPosterior):
    """Independent weights."""

    def marginal_variance(self) -> Tensor:
        return self.precision.reciprocal()

    def solve(self, vector: Tensor) -> Tensor:
        return vector / self.precision

    def predictive(self, inputs: Tensor, mean: Tensor) -> Gaussians:
        """v_k = sum_h x_h^2 S_kh: a second pass of the layer."""
        self.check_inputs(inputs)
        return Gaussians(mean, weighted_squares(inputs, self.marginal_variance().to(inputs.dtype)))

    def predictive_with_bias(self, features: Tensor, mean: Tensor) -> Gaussians:
        """Without a copy of the features that has the 1 in it."""
        variance = self.marginal_variance().to(features.dtype)
        if features.ndim != 2 or features.shape[1] != self.shape[1] - 1:
            raise ValueError(
                f"features has shape {tuple(features.shape)}, (N, {self.shape[1] - 1}) is needed for this posterior"
            )
        return Gaussians(mean, weighted_squares(features, variance[:, :-1]) + variance[:, -1])

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        return normal((k, *self.shape), generator, self.precision) * self.precision.rsqrt()


def weighted_squares(inputs: Tensor, weights: Tensor) -> Tensor:
    """sum_h x_nh^2 w_kh, (N, Z): the squares are made block by block, and are still in the cache when they are used."""
    result = inputs.new_empty(len(inputs), len(weights))
    rows = max(1, SQUARES_AT_ONCE // max(1, inputs.shape[1]))
    for start in range(0, len(inputs), rows):
        result[start : start + rows] = inputs[start : start + rows].square() @ weights.T
    return result
