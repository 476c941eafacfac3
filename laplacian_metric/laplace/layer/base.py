r"""The curvature of a linear layer u = W h + b, and the Gaussian posterior that it gives with a scale and a prior.

x = [h, 1] are the layer's inputs, H' of them (H without a bias, or where the bias is not random), and the parameters
[W | b] are a (Z, H') matrix. A curvature G is positive semi-definite and unscaled; the posterior's precision is

    P = scale G + prior I,    scale = n_effective / temperature.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from hessians.checks import Choice, check_floating
from laplacian_metric.core.gaussian import Gaussians

SQUARES_AT_ONCE = 1 << 18


class Structure(Choice):
    """What is kept of the covariances between the weights."""

    DIAGONAL = "diag"
    """None: a variance for every weight."""

    KRONECKER = "kron"
    """A product of one matrix over the outputs and one over the inputs."""

    LOW_RANK = "lowrank"
    """The largest eigenvectors of the curvature, and the diagonal of the rest."""

    FULL = "full"
    """All of them; for layers of at most a few thousand weights."""


class LayerPosterior(ABC):
    """N(0, P^-1) over the deviations of [W | b] from their mode, (Z, H')."""

    shape: tuple[int, int]
    prior: float

    @abstractmethod
    def log_determinant(self) -> float:
        """log det P."""

    @abstractmethod
    def effective_parameters(self) -> float:
        """tr(scale G P^-1): how many parameters the data determine rather than the prior."""

    @abstractmethod
    def marginal_variance(self) -> Tensor:
        """The diagonal of P^-1, (Z, H')."""

    @abstractmethod
    def solve(self, vector: Tensor) -> Tensor:
        """P^-1 v for v (Z, H')."""

    @abstractmethod
    def predictive(self, inputs: Tensor, mean: Tensor) -> Gaussians:
        """The Gaussians of u = W h + b for inputs x (N, H') and their means (N, Z)."""

    def predictive_with_bias(self, features: Tensor, mean: Tensor) -> Gaussians:
        """`predictive` for x = [h, 1], from h (N, H' - 1)."""
        return self.predictive(torch.cat([features, features.new_ones(len(features), 1)], dim=1), mean)

    @abstractmethod
    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """k draws of the deviations, (k, Z, H')."""

    @property
    def num_parameters(self) -> int:
        """Z H'."""
        return self.shape[0] * self.shape[1]

    @property
    def num_outputs(self) -> int:
        """Z."""
        return self.shape[0]

    def check_inputs(self, inputs: Tensor) -> None:
        """Refuse inputs of another layer, and those without the 1 that stands for the bias."""
        if inputs.ndim != 2 or inputs.shape[1] != self.shape[1]:
            raise ValueError(
                f"inputs has shape {tuple(inputs.shape)}, (N, {self.shape[1]}) is needed: the features, and a "
                "column of ones where the bias is random"
            )


class LayerCurvature(ABC):
    """A positive semi-definite matrix over the (Z, H') weights of a layer.

    ``clamped`` is the share of what was negative and has been set to 0: entries of a diagonal, eigenvalues otherwise.
    """

    structure: ClassVar[Structure]
    shape: tuple[int, int]
    clamped: float

    @abstractmethod
    def posterior(self, scale: float, prior: float) -> LayerPosterior:
        """The Gaussian with the precision ``scale`` G + ``prior`` I."""

    @abstractmethod
    def trace(self) -> float:
        """The sum of the eigenvalues."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """(Z, H')."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What has to be stored, by name."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: dict[str, Tensor], clamped: float) -> LayerCurvature:
        """The inverse of ``tensors``."""

    @property
    def num_parameters(self) -> int:
        """Z H'."""
        return self.shape[0] * self.shape[1]

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.tensors().values())).dtype

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> LayerCurvature:
        """Moved to a device or converted to a dtype."""
        moved = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in self.tensors().items()
        }
        return self.from_tensors(moved, self.clamped)


class EigenPosterior(LayerPosterior):
    """What follows from the eigenvalues of a curvature alone."""

    def __init__(self, eigenvalues: Tensor, scale: float, prior: float, shape: tuple[int, int]) -> None:
        check_scale(scale, prior, eigenvalues.dtype)
        self.shape = shape
        self.prior = prior
        self.data = eigenvalues * scale
        self.precision = self.data + prior

    def log_determinant(self) -> float:
        return float((self.data.double() + self.prior).log().sum())

    def effective_parameters(self) -> float:
        data = self.data.double()
        return float((data / (data + self.prior)).sum())


def check_scale(scale: float, prior: float, dtype: torch.dtype) -> None:
    """Refuse what gives no proper Gaussian in the curvature's dtype."""
    for name, value in (("n_effective / temperature", scale), ("prior precision", prior)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}, a finite number that is not negative is needed")
    if prior == 0:
        raise ValueError(
            "prior precision is 0: weights that the data say nothing about would have no variance; take any "
            "positive number"
        )
    limits = torch.finfo(dtype)
    if not limits.tiny <= prior <= limits.max:
        raise ValueError(
            f"prior precision is {prior}, {dtype} reaches from {limits.tiny:.3g} to {limits.max:.3g}: take a "
            "number between, or a curvature in float64"
        )


def check_curvature(ndim: int, **tensors: Tensor) -> None:
    """Refuse what is no floating point tensor of ``ndim`` dimensions, or has NaN or infinite entries."""
    for name, tensor in tensors.items():
        check_floating(name, tensor)
        if tensor.ndim != ndim or not tensor.numel():
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, {ndim} dimensions that are not 0 are needed"
            )
        if not tensor.isfinite().all():
            raise ValueError(
                f"{name} has {int((~tensor.isfinite()).sum())} NaN or infinite entries: look for them in the "
                "embeddings and in the output Hessian that it was accumulated from"
            )


def negative_share(values: Tensor, size: Tensor, terms: int) -> float:
    """The share of values below 0 by more than the rounding of ``terms`` terms as large as ``size``."""
    below = values < -torch.finfo(values.dtype).eps * terms * size
    return float(below.double().mean()) if below.numel() else 0.0


def normal(shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Standard normal draws."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


# --- a variance for every weight ---


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
