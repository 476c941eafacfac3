r"""The largest eigenvectors of a curvature, and the diagonal of the rest.

With G = D + V^T V, V (r, Z H'), the precision is P = d + s V^T V with d = s D + prior. In units of d, with
R = sqrt(s) V d^(-1/2) and the eigenvectors of R R^T (r x r) making R's rows orthonormal (Q, eigenvalues e),

    P^-1 = d^(-1/2) (I - Q^T diag(e/(1+e)) Q) d^(-1/2).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from laplacian_metric.gaussian import Gaussians
from laplacian_metric.laplace.layer.base import (
    LayerCurvature,
    LayerPosterior,
    Structure,
    check_scale,
    normal,
    share,
)


class LowRankCurvature(LayerCurvature):
    """D + sum_r v_r v_r^T.

    Args:
        rest: D, (Z, H'); its negative entries are set to 0 here, once.
        factor: V, (r, Z, H').

    Example:
        >>> curvature = LowRankCurvature(torch.ones(2, 3), torch.ones(1, 2, 3))
        >>> curvature.diagonal()[0], round(curvature.posterior(1.0, 1.0).log_determinant(), 4)
        (tensor([2., 2., 2.]), 5.5452)
    """

    structure: ClassVar[Structure] = Structure.LOW_RANK

    def __init__(self, rest: Tensor, factor: Tensor, clamped: float | None = None) -> None:
        if factor.shape[1:] != rest.shape:
            raise ValueError(f"factor has shape {tuple(factor.shape)}, (r, *{tuple(rest.shape)}) is needed")
        self.shape = (rest.shape[0], rest.shape[1])
        self.clamped = share(rest < 0) if clamped is None else clamped
        self.rest, self.factor = rest.clamp(min=0), factor

    def posterior(self, scale: float, prior: float) -> LowRankPosterior:
        return LowRankPosterior(self, scale, prior)

    def trace(self) -> float:
        return float(self.diagonal().double().sum())

    def diagonal(self) -> Tensor:
        return self.rest + self.factor.square().sum(0)

    def tensors(self) -> dict[str, Tensor]:
        return {"rest": self.rest, "factor": self.factor}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], clamped: float) -> LowRankCurvature:
        return cls(tensors["rest"], tensors["factor"], clamped)


class LowRankPosterior(LayerPosterior):
    """See the module; ``kept`` are the eigenvalues e, ``vectors`` is Q d^(-1/2), (r, Z, H')."""

    def __init__(self, curvature: LowRankCurvature, scale: float, prior: float) -> None:
        check_scale(scale, prior)
        self.shape = curvature.shape
        self.prior = prior
        self.diagonal = curvature.rest * scale + prior
        scaled = (curvature.factor * (scale**0.5) * self.diagonal.rsqrt()).flatten(1)
        values, vectors = torch.linalg.eigh((scaled @ scaled.T).double())
        # Rows that are combinations of others add nothing.
        largest = float(values.amax()) if len(values) else 0.0
        keep = values > largest * max(1, len(values)) * torch.finfo(scaled.dtype).eps
        self.kept = values[keep]
        rows = (vectors[:, keep] / self.kept.sqrt()).T.to(scaled.dtype) @ scaled
        self.vectors = rows.view(-1, *self.shape) * self.diagonal.rsqrt()
        self.share = (self.kept / (1 + self.kept)).to(scaled.dtype)

    def log_determinant(self) -> float:
        return float(self.diagonal.double().log().sum() + self.kept.log1p().sum())

    def effective_parameters(self) -> float:
        """P - prior tr(P^-1)."""
        return self.num_parameters - self.prior * float(self.marginal_variance().double().sum())

    def marginal_variance(self) -> Tensor:
        less = torch.einsum("r,rkh->kh", self.share, self.vectors.square())
        return (self.diagonal.reciprocal() - less).clamp(min=0)

    def solve(self, vector: Tensor) -> Tensor:
        along = torch.einsum("rkh,kh->r", self.vectors, vector) * self.share
        return vector / self.diagonal - torch.einsum("r,rkh->kh", along, self.vectors)

    def predictive(self, inputs: Tensor, mean: Tensor) -> Gaussians:
        """diag_k(sum_h x_h^2/d_kh) less the part that the kept directions determine, (N, Z, Z)."""
        wide = inputs.square() @ self.diagonal.reciprocal().to(inputs.dtype).T
        along = torch.einsum("nh,rkh->nkr", inputs, self.vectors.to(inputs.dtype))
        less = (along * self.share.to(inputs.dtype)) @ along.mT
        # Of an image that the kept directions determine well, the difference has only the rounding of its terms.
        values, axes = torch.linalg.eigh((torch.diag_embed(wide) - less).double())
        covariance = (axes * values.clamp(min=0)[:, None, :]) @ axes.mT
        return Gaussians(mean, covariance.to(inputs.dtype))

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """d^(-1/2) (I - Q^T (1 - (1+e)^(-1/2)) Q) noise."""
        noise = normal((k, *self.shape), generator, self.diagonal)
        # vectors = Q d^(-1/2), so that Q noise = vectors . (d^(1/2) noise).
        along = torch.einsum("rkh,skh->sr", self.vectors, noise * self.diagonal.sqrt())
        along = along * (1 - (1 + self.kept).rsqrt()).to(along.dtype)
        return noise * self.diagonal.rsqrt() - torch.einsum("sr,rkh->skh", along, self.vectors)
