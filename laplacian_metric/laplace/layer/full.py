"""All covariances between the weights of a layer."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from laplacian_metric.core.gaussian import Gaussians, symmetric
from laplacian_metric.laplace.layer.base import (
    EigenPosterior,
    LayerCurvature,
    Structure,
    check_curvature,
    negative_share,
    normal,
)

# Beyond this many weights a dense matrix over them is refused: its eigenvectors take minutes, and 8 n^2 bytes thrice.
DENSE_WEIGHTS = 8192
BLOCK = 1 << 24  # entries of the images' rows at a time


class FullCurvature(LayerCurvature):
    """G over the Z H' weights in row-major order, held as its eigenvalues and eigenvectors.

    Args:
        values: (P,), P = Z H'; negative ones are set to 0 here, once.
        vectors: (P, P), in columns.
        num_outputs: Z.

    Example:
        >>> curvature = FullCurvature.from_matrix(torch.diag(torch.tensor([2.0, 1.0, 4.0, 3.0])), num_outputs=2)
        >>> curvature.diagonal()
        tensor([[2., 1.],
                [4., 3.]])
    """

    structure: ClassVar[Structure] = Structure.FULL

    def __init__(
        self, values: Tensor, vectors: Tensor, num_outputs: int, clamped: float | None = None
    ) -> None:
        self.shape = (num_outputs, len(values) // num_outputs)
        self.clamped = (
            negative_share(values, values.abs().amax(), len(values)) if clamped is None else clamped
        )
        self.values, self.vectors = values.clamp(min=0), vectors

    @classmethod
    def from_matrix(cls, matrix: Tensor, num_outputs: int) -> FullCurvature:
        """From G (P, P), symmetric; takes O(P^3)."""
        check_curvature(2, matrix=matrix)
        if matrix.shape[0] != matrix.shape[1] or len(matrix) % num_outputs:
            raise ValueError(
                f"matrix has shape {tuple(matrix.shape)}, as many rows and columns as weights are needed: a multiple "
                f"of the {num_outputs} outputs"
            )
        check_dense_weights(num_outputs, len(matrix) // num_outputs)
        values, vectors = torch.linalg.eigh(matrix)
        return cls(values, vectors, num_outputs)

    def posterior(self, scale: float, prior: float) -> FullPosterior:
        return FullPosterior(self, scale, prior)

    def trace(self) -> float:
        return float(self.values.double().sum())

    def diagonal(self) -> Tensor:
        return (self.vectors.square() @ self.values).view(self.shape)

    def tensors(self) -> dict[str, Tensor]:
        outputs = torch.tensor(self.shape[0], device=self.values.device)
        return {"values": self.values, "vectors": self.vectors, "num_outputs": outputs}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], clamped: float) -> FullCurvature:
        return cls(tensors["values"], tensors["vectors"], int(tensors["num_outputs"]), clamped)


class FullPosterior(EigenPosterior):
    """Independent along the eigenvectors of the curvature."""

    def __init__(self, curvature: FullCurvature, scale: float, prior: float) -> None:
        super().__init__(curvature.values, scale, prior, curvature.shape)
        self.vectors = curvature.vectors

    def marginal_variance(self) -> Tensor:
        return (self.vectors.square() @ self.precision.reciprocal()).view(self.shape)

    def solve(self, vector: Tensor) -> Tensor:
        turned = (self.vectors.T @ vector.flatten()) / self.precision
        return (self.vectors @ turned).view(self.shape)

    def predictive(self, inputs: Tensor, mean: Tensor) -> Gaussians:
        """J P^-1 J^T with J = I kron x^T: squares of the images' rows along every eigenvector."""
        self.check_inputs(inputs)
        root = (self.vectors * self.precision.rsqrt()).to(inputs.dtype).view(*self.shape, -1)
        covariances = []
        for part in inputs.split(max(1, BLOCK // (self.num_outputs * self.num_parameters))):
            rows = torch.einsum("nh,khp->nkp", part, root)
            covariances.append(symmetric(rows @ rows.mT))
        return Gaussians(mean, torch.cat(covariances))

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        noise = normal((k, len(self.precision)), generator, self.precision) * self.precision.rsqrt()
        return (noise @ self.vectors.T).view(k, *self.shape)


def check_dense_weights(num_outputs: int, num_inputs: int) -> None:
    """Refuse a matrix over the weights that would not fit."""
    size = num_outputs * num_inputs
    if size > DENSE_WEIGHTS:
        raise ValueError(
            f'structure "full" of a layer of {num_outputs} x {num_inputs} weights needs a matrix with {size} rows '
            f'({8 * size**2 / 2**30:.1f} GiB), at most {DENSE_WEIGHTS} are allowed: take "lowrank" or "kron"'
        )
