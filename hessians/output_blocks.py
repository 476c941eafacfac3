"""Contractions of the Z x Z blocks M_nm of an output Hessian, in float64: what Kronecker factors are made from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hessians.output_hessian import (
    BlockHessian,
    DenseHessian,
    OutputHessian,
    StructuredHessian,
)
from hessians.unsquared import UnsquaredHessian


class OutputBlocks(ABC):
    """``coupled`` says whether there are blocks of two different images."""

    coupled: bool

    @abstractmethod
    def sum_over_images(self, inner: Tensor) -> Tensor:
        """sum_nm K_nm M_nm for K (N, N), or for its diagonal (N,) where nothing is coupled; (Z, Z)."""

    @abstractmethod
    def inner_products(self, output: Tensor) -> Tensor:
        """<A, M_nm> for a symmetric A (Z, Z); (N, N), or its diagonal (N,) where nothing is coupled."""

    @abstractmethod
    def absolute_contributions(self, gram: Tensor) -> Tensor:
        """What sum_nm |M_nm| |gram_nm| adds up to, gram (N, N); a curvature far below it is rounding."""


def output_blocks(hessian: OutputHessian, *, coupled: bool = False) -> OutputBlocks:
    """The blocks of an output Hessian; ``coupled`` asks for N x N matrices even where no two images are coupled."""
    if isinstance(hessian, UnsquaredHessian):
        hessian = hessian.exact()
    if isinstance(hessian, OutputBlocks):
        return hessian
    if isinstance(hessian, DenseHessian):
        return _DenseBlocks(hessian)
    if isinstance(hessian, BlockHessian):
        return _OwnBlocks(hessian, coupled)
    if isinstance(hessian, StructuredHessian):
        return _UncoupledBlocks(hessian) if hessian.graph is None and not coupled else _CoupledBlocks(hessian)
    raise TypeError(f"there are no blocks of an output Hessian of type {type(hessian).__name__}")


class _DenseBlocks(OutputBlocks):
    coupled = True

    def __init__(self, hessian: DenseHessian) -> None:
        self.matrix = hessian.matrix.double()

    def sum_over_images(self, inner: Tensor) -> Tensor:
        return torch.einsum("nm,nkml->kl", inner, self.matrix)

    def inner_products(self, output: Tensor) -> Tensor:
        return torch.einsum("kl,nkml->nm", output, self.matrix)

    def absolute_contributions(self, gram: Tensor) -> Tensor:
        return (self.matrix.abs().amax((1, 3)) * gram.abs()).sum()


class _OwnBlocks(OutputBlocks):
    """Blocks of single images, one by one."""

    def __init__(self, hessian: BlockHessian, coupled: bool) -> None:
        self.coupled = coupled
        self.matrix = hessian.matrix.double()

    def sum_over_images(self, inner: Tensor) -> Tensor:
        return torch.einsum("n,nkl->kl", inner.diagonal() if self.coupled else inner, self.matrix)

    def inner_products(self, output: Tensor) -> Tensor:
        products = torch.einsum("kl,nkl->n", output, self.matrix)
        return products.diag() if self.coupled else products

    def absolute_contributions(self, gram: Tensor) -> Tensor:
        return (self.matrix.abs().amax((1, 2)) * gram.diagonal().abs()).sum()


class _StructuredBlocks(OutputBlocks):
    """M_nm = F_nm P_n P_m, and r_n^2 (z_n q_n^T + q_n z_n^T) where n = m; or F_nm I where there is no norm."""

    def __init__(self, hessian: StructuredHessian) -> None:
        self.dim = hessian.dim
        nodes = hessian.nodes.double()
        self.unit = None if hessian.unit is None else hessian.unit.double()
        scale = torch.ones_like(nodes) if hessian.inverse_norm is None else hessian.inverse_norm.double()
        self.scale = scale
        self.radial = None if hessian.radial is None else hessian.radial.double() * scale.square()[:, None]

    def _identity(self) -> Tensor:
        return torch.eye(self.dim, dtype=self.scale.dtype, device=self.scale.device)

    def _radial_sum(self, weight: Tensor) -> Tensor | float:
        """sum_n k_n r_n^2 (z_n q_n^T + q_n z_n^T)."""
        if self.radial is None or self.unit is None:
            return 0.0
        cross = (self.unit * weight[:, None]).T @ self.radial
        return cross + cross.T

    def _radial_products(self, half: Tensor) -> Tensor | float:
        """<A, r_n^2 (z_n q_n^T + q_n z_n^T)> from z A; (N,)."""
        return 0.0 if self.radial is None else 2 * (half * self.radial).sum(1)


class _CoupledBlocks(_StructuredBlocks):
    coupled = True

    def __init__(self, hessian: StructuredHessian) -> None:
        super().__init__(hessian)
        self.weight = hessian.laplacian().double() * self.scale[:, None] * self.scale

    def absolute_contributions(self, gram: Tensor) -> Tensor:
        return (self.weight.abs() * gram.abs()).sum()

    def sum_over_images(self, inner: Tensor) -> Tensor:
        weight = inner * self.weight
        if self.unit is None:
            return weight.sum() * self._identity()
        # Multiply the projections out.
        own = (self.unit * weight.sum(1, keepdim=True)).T @ self.unit
        pairs = self.unit.T @ (weight * (self.unit @ self.unit.T)) @ self.unit
        total = weight.sum() * self._identity() - own - own.T + pairs + self._radial_sum(inner.diagonal())
        return (total + total.T) / 2

    def inner_products(self, output: Tensor) -> Tensor:
        if self.unit is None:
            return self.weight * output.trace()
        half = self.unit @ output
        between = half @ self.unit.T  # z_n^T A z_m
        own = between.diagonal()
        cosine = self.unit @ self.unit.T
        product = output.trace() - own[:, None] - own[None, :] + cosine * between
        return self.weight * product + torch.diag_embed(
            torch.zeros_like(self.scale) + self._radial_products(half)
        )


class _UncoupledBlocks(_StructuredBlocks):
    """F = diag(r_n^2 nodes_n): nothing of size N x N."""

    coupled = False

    def __init__(self, hessian: StructuredHessian) -> None:
        super().__init__(hessian)
        self.weight = hessian.nodes.double() * self.scale.square()

    def absolute_contributions(self, gram: Tensor) -> Tensor:
        return (self.weight.abs() * gram.diagonal().abs()).sum()

    def sum_over_images(self, inner: Tensor) -> Tensor:
        weight = inner * self.weight
        total = weight.sum() * self._identity()
        if self.unit is not None:
            total = total - (self.unit * weight[:, None]).T @ self.unit + self._radial_sum(inner)
        return total

    def inner_products(self, output: Tensor) -> Tensor:
        if self.unit is None:
            return self.weight * output.trace()
        half = self.unit @ output
        product = output.trace() - (half * self.unit).sum(1)
        return self.weight * product + self._radial_products(half)
