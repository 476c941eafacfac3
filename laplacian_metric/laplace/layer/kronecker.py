"""A Kronecker product: one matrix over the outputs of the layer, one over its inputs."""

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


class KroneckerCurvature(LayerCurvature):
    """A kron B with A (Z, Z) and B (H', H'), held as their eigenvalues and eigenvectors.

    The eigenvalues of the product are those of A times those of B; negative products are set to 0.

    Example:
        >>> curvature = KroneckerCurvature.from_factors(torch.eye(2), torch.diag(torch.tensor([1.0, 3.0])))
        >>> curvature.diagonal()
        tensor([[1., 3.],
                [1., 3.]])
    """

    structure: ClassVar[Structure] = Structure.KRONECKER

    def __init__(
        self,
        output_values: Tensor,
        output_vectors: Tensor,
        input_values: Tensor,
        input_vectors: Tensor,
        clamped: float | None = None,
    ) -> None:
        self.output_values, self.output_vectors = output_values, output_vectors
        self.input_values, self.input_vectors = input_values, input_vectors
        self.shape = (len(output_values), len(input_values))
        products = output_values[:, None] * input_values
        # What rounding leaves below 0 of an eigenvalue that is 0 has not been clamped in any sense that matters.
        if clamped is None:
            clamped = negative_share(products, products.abs().amax(), sum(self.shape))
        self.clamped = clamped
        self.eigenvalues = products.clamp(min=0)

    @classmethod
    def from_factors(cls, output: Tensor, inputs: Tensor) -> KroneckerCurvature:
        """From A and B themselves; the eigendecomposition of B takes O(H'^3)."""
        check_curvature(2, output=output, inputs=inputs)
        output_values, output_vectors = torch.linalg.eigh(output)
        input_values, input_vectors = torch.linalg.eigh(inputs)
        return cls(output_values, output_vectors, input_values, input_vectors)

    def posterior(self, scale: float, prior: float) -> KroneckerPosterior:
        return KroneckerPosterior(self, scale, prior)

    def trace(self) -> float:
        return float(self.eigenvalues.double().sum())

    def diagonal(self) -> Tensor:
        return self.output_vectors.square() @ self.eigenvalues @ self.input_vectors.square().T

    def tensors(self) -> dict[str, Tensor]:
        return {
            "output_values": self.output_values,
            "output_vectors": self.output_vectors,
            "input_values": self.input_values,
            "input_vectors": self.input_vectors,
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], clamped: float) -> KroneckerCurvature:
        return cls(**tensors, clamped=clamped)


class KroneckerPosterior(EigenPosterior):
    """Independent along the products of the eigenvectors of both factors."""

    def __init__(self, curvature: KroneckerCurvature, scale: float, prior: float) -> None:
        super().__init__(curvature.eigenvalues, scale, prior, curvature.shape)
        self.output_vectors, self.input_vectors = curvature.output_vectors, curvature.input_vectors

    def marginal_variance(self) -> Tensor:
        return self.output_vectors.square() @ self.precision.reciprocal() @ self.input_vectors.square().T

    def solve(self, vector: Tensor) -> Tensor:
        turned = self.output_vectors.T @ vector @ self.input_vectors
        return self.output_vectors @ (turned / self.precision) @ self.input_vectors.T

    def predictive(self, inputs: Tensor, mean: Tensor) -> Gaussians:
        """All images share the eigenvectors of A; along them the variances are sum_h (U_B^T x)_h^2 / P_kh."""
        self.check_inputs(inputs)
        turned = inputs @ self.input_vectors.to(inputs.dtype)
        variance = turned.square() @ self.precision.reciprocal().to(inputs.dtype).T
        return Gaussians(mean, variance, self.output_vectors.to(inputs.dtype))

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        noise = normal((k, *self.shape), generator, self.precision) * self.precision.rsqrt()
        return self.output_vectors @ noise @ self.input_vectors.T
