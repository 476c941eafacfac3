r"""The largest eigenvectors of a curvature, and the diagonal of the rest.

With G = D + V^T V, V (r, Z H'), the precision is P = d + s V^T V with d = s D + prior. In units of d, with
R = sqrt(s) V d^(-1/2) and the eigenvectors of R R^T (r x r) making R's rows orthonormal (Q, eigenvalues e),

    P^-1 = d^(-1/2) (I - Q^T diag(e/(1+e)) Q) d^(-1/2).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from laplacian_metric.core.gaussian import Gaussians, symmetric
from laplacian_metric.laplace.layer.base import (
    LayerCurvature,
    LayerPosterior,
    Structure,
    check_curvature,
    check_scale,
    negative_share,
    normal,
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
        check_curvature(2, rest=rest)
        if len(factor):
            check_curvature(3, factor=factor)
        if factor.shape[1:] != rest.shape:
            raise ValueError(f"factor has shape {tuple(factor.shape)}, (r, *{tuple(rest.shape)}) is needed")
        self.shape = (rest.shape[0], rest.shape[1])
        if clamped is None:
            # The rest is a difference, which is exact to the rounding of the diagonal that it is the rest of.
            whole = (rest.abs() + factor.square().sum(0)).amax()
            clamped = negative_share(rest, whole, 1 + len(factor))
        self.clamped = clamped
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
    """See the module; ``kept`` are the eigenvalues e, ``vectors`` is Q d^(-1/2), (r, Z, H').

    In float64, whatever the curvature is in: where the data say much more than the prior, what is left of the
    variance along the kept directions is a difference of nearly equal numbers.
    """

    def __init__(self, curvature: LowRankCurvature, scale: float, prior: float) -> None:
        check_scale(scale, prior, curvature.dtype)
        self.shape = curvature.shape
        self.prior = prior
        self.dtype = curvature.dtype
        self.data = curvature.rest.double() * scale
        self.diagonal = self.data + prior
        scaled = (curvature.factor.double() * (scale**0.5) * self.diagonal.rsqrt()).flatten(1)
        values, vectors = torch.linalg.eigh(scaled @ scaled.T)
        # Rows that are combinations of others add nothing.
        largest = float(values.amax()) if len(values) else 0.0
        keep = values > largest * max(1, len(values)) * torch.finfo(values.dtype).eps
        self.kept = values[keep]
        rows = (vectors[:, keep] / self.kept.sqrt()).T @ scaled
        self.vectors = rows.view(-1, *self.shape) * self.diagonal.rsqrt()
        self.share = self.kept / (1 + self.kept)

    def log_determinant(self) -> float:
        return float(self.diagonal.log().sum() + self.kept.log1p().sum())

    def effective_parameters(self) -> float:
        """tr(P^-1 (P - prior)) without a subtraction: sum s D/d + prior sum_r e/(1+e) |Q d^(-1/2)|_r^2."""
        along = self.vectors.square().sum((1, 2)) @ self.share
        return float((self.data / self.diagonal).sum() + self.prior * along)

    def marginal_variance(self) -> Tensor:
        less = torch.einsum("r,rkh->kh", self.share, self.vectors.square())
        return (self.diagonal.reciprocal() - less).clamp(min=0).to(self.dtype)

    def solve(self, vector: Tensor) -> Tensor:
        exact = vector.double()
        along = torch.einsum("rkh,kh->r", self.vectors, exact) * self.share
        solved = exact / self.diagonal - torch.einsum("r,rkh->kh", along, self.vectors)
        return solved.to(vector.dtype)

    def predictive(self, inputs: Tensor, mean: Tensor) -> Gaussians:
        """diag_k(sum_h x_h^2/d_kh) less the part that the kept directions determine, (N, Z, Z)."""
        self.check_inputs(inputs)
        exact = inputs.double()
        wide = exact.square() @ self.diagonal.reciprocal().T
        along = torch.einsum("nh,rkh->nkr", exact, self.vectors)
        less = (along * self.share) @ along.mT
        covariance = symmetric(torch.diag_embed(wide) - less)
        # Of an image that the kept directions determine fully, the difference has only the rounding of its terms.
        # Eigenvectors take ten times as long as the Cholesky factor that finds these images.
        rounded = torch.linalg.cholesky_ex(covariance).info > 0
        if bool(rounded.any()):
            values, axes = torch.linalg.eigh(covariance[rounded])
            covariance[rounded] = symmetric((axes * values.clamp(min=0)[:, None, :]) @ axes.mT)
        return Gaussians(mean, covariance.to(inputs.dtype))

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """d^(-1/2) (I - Q^T (1 - (1+e)^(-1/2)) Q) noise."""
        noise = normal((k, *self.shape), generator, self.diagonal)
        # vectors = Q d^(-1/2), so that Q noise = vectors . (d^(1/2) noise).
        along = torch.einsum("rkh,skh->sr", self.vectors, noise * self.diagonal.sqrt())
        along = along * (1 - (1 + self.kept).rsqrt())
        drawn = noise * self.diagonal.rsqrt() - torch.einsum("sr,rkh->skh", along, self.vectors)
        return drawn.to(self.dtype)
