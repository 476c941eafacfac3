r"""The curvature of a linear layer u = W h + b, and the Gaussian posterior that it gives with a scale and a prior.

x = [h, 1] are the layer's inputs, H' of them (H without a bias, or where the bias is not random), and the parameters
[W | b] are a (Z, H') matrix. A curvature G is positive semi-definite and unscaled; the posterior's precision is

    P = scale G + prior I,    scale = n_effective / temperature.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from laplacian_metric.gaussian import Gaussians


class Structure(str, Enum):
    """What is kept of the covariances between the weights."""

    DIAGONAL = "diag"
    """None: a variance for every weight."""

    KRONECKER = "kron"
    """A product of one matrix over the outputs and one over the inputs."""

    LOW_RANK = "lowrank"
    """The largest eigenvectors of the curvature, and the diagonal of the rest."""

    FULL = "full"
    """All of them; for layers of at most a few thousand weights."""

    @classmethod
    def parse(cls, value: str | Structure) -> Structure:
        """The member with this name, or an error that lists them."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(repr(member.value) for member in cls)
            raise ValueError(f"structure is {value!r}, one of {names} is needed") from None


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
        moved = {name: tensor.to(device, dtype) for name, tensor in self.tensors().items()}
        return self.from_tensors(moved, self.clamped)


class EigenPosterior(LayerPosterior):
    """What follows from the eigenvalues of a curvature alone."""

    def __init__(self, eigenvalues: Tensor, scale: float, prior: float, shape: tuple[int, int]) -> None:
        check_scale(scale, prior)
        self.shape = shape
        self.prior = prior
        self.data = eigenvalues * scale
        self.precision = self.data + prior

    def log_determinant(self) -> float:
        return float(self.precision.double().log().sum())

    def effective_parameters(self) -> float:
        return float((self.data.double() / self.precision.double()).sum())


def check_scale(scale: float, prior: float) -> None:
    """Refuse what gives no proper Gaussian."""
    for name, value in (("n_effective / temperature", scale), ("prior precision", prior)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value}, a finite number that is not negative is needed")
    if prior == 0:
        raise ValueError(
            "prior precision is 0: weights that the data say nothing about would have no variance; take any "
            "positive number"
        )


def share(mask: Tensor) -> float:
    """The share of True entries; 0 of none."""
    return float(mask.double().mean()) if mask.numel() else 0.0


def normal(shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Standard normal draws."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
