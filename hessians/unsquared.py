r"""The Hessian of the pair loss of the un-squared distance, beside that of the squared one.

It has Y/d in the place of the pair weights Y, and one more term, the second derivative of d along each pair:

    M - R (sum over pairs of V_ij delta_ij delta_ij^T) R,   V = Y/d^3,

with delta_ij = z_i - z_j in the rows of i, z_j - z_i in those of j and 0 elsewhere; "fixed" leaves out what of it
couples two images. On the sphere <delta_ij, z_i> = d^2/2, which makes its diagonal as cheap as that of M.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hessians.graph import PairGraph
from hessians.output_hessian import (
    BlockHessian,
    Columns,
    DenseHessian,
    DenseSizeError,
    MatrixHessian,
    OutputHessian,
    StructuredHessian,
)

# Numbers in the blocks of single images, a gigabyte in float64.
BLOCK_ENTRIES = 1 << 27


class UnsquaredHessian(OutputHessian):
    """The output Hessian of the un-squared distance (see the module).

    Args:
        base: the terms that the squared distance has too, with Y/d in the place of Y; its graph is None where no two
            images are coupled.
        points: z or u, (N, Z), between which distances are taken.
        bend: V, in float64, since what is left of its sums is smaller by d^2 than their terms.
        gradient: of the loss in the points, (N, Z): sum_m Y_nm delta_nm/d_nm.
    """

    def __init__(self, base: StructuredHessian, points: Tensor, bend: PairGraph, gradient: Tensor) -> None:
        self.base = base
        self.like = base.nodes
        self.points = points.double()
        if base.unit is None and len(points):
            self.points = self.points - self.points.mean(0)
        self.bend = bend
        self.gradient = gradient
        self.num_images, self.dim = points.shape
        self._blocks: BlockHessian | None = None

    def _sums(self, products: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """V 1 (N, 1), V z (N, Z) and V times ``products`` (N, C), in one pass over V."""
        ones = self.points.new_ones(self.num_images, 1)
        sums = self.bend.product(torch.cat([ones, self.points, products], dim=1))
        return sums[:, :1], sums[:, 1 : self.dim + 1], sums[:, self.dim + 1 :]

    def bend_diagonal(self) -> Tensor:
        """The diagonals of R_n Q_n R_n, (N, Z), with Q_n = sum_m V_nm delta_nm delta_nm^T."""
        z = self.points
        total, product, squares = self._sums(z.square())
        diagonal = total * z.square() - 2 * z * product + squares
        if self.base.unit is None or self.base.inverse_norm is None:
            return diagonal.to(self.like.dtype)
        # On the sphere <delta_nm, z_n> = d_nm^2/2, so that Q_n z_n is half of the gradient.
        half = self.gradient.double() / 2
        diagonal += z.square() * (half * z).sum(1, keepdim=True) - 2 * z * half
        return diagonal.to(self.like.dtype) * self.base.inverse_norm.square()[:, None]

    def diagonal_per_dimension(self) -> Tensor:
        """The diagonals of the blocks M_nn, without what the edges of ``base`` add, (N, Z)."""
        return self.base.diagonal_per_dimension() - self.bend_diagonal()

    def edge_coefficients(self, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
        """-V_p (R_i delta_p)_k (R_j delta_p)_k of pairs, (P, Z): minus the diagonals of the bend's blocks M_ij."""
        delta = self.points[first] - self.points[second]
        if self.base.inverse_norm is None:
            products = delta.square()
        else:
            # On the sphere R_i delta = r_i (delta - z_i d^2/2) and R_j delta = r_j (delta + z_j d^2/2).
            half = delta.square().sum(1, keepdim=True) / 2
            products = (delta - half * self.points[first]) * (delta + half * self.points[second])
            weight = weight * self.base.inverse_norm[first] * self.base.inverse_norm[second]
        return (-weight[:, None] * products).to(self.like.dtype)

    def own_blocks(self) -> Tensor:
        """Q_n of every image, (N, Z, Z)."""
        if self.num_images * self.dim**2 > BLOCK_ENTRIES:
            raise DenseSizeError(
                f"{self.num_images} blocks of {self.dim} x {self.dim} numbers are needed, and at most {BLOCK_ENTRIES} "
                'numbers are allowed: take fewer images, or structure "diag", which needs no blocks'
            )
        z = self.points
        rows, columns = torch.triu_indices(self.dim, self.dim, device=z.device)
        total, product, upper = self._sums(z[:, rows] * z[:, columns])
        moments = z.new_empty(self.num_images, self.dim, self.dim)
        moments[:, rows, columns] = moments[:, columns, rows] = upper
        cross = z[:, :, None] * product[:, None, :]
        blocks = moments - cross - cross.mT + total[:, :, None] * z[:, :, None] * z[:, None, :]
        return blocks.to(self.like.dtype)

    def exact(self) -> MatrixHessian:
        """M by its blocks: those of single images where no two are coupled, else all of them."""
        if self.base.graph is not None:
            return DenseHessian(self.dense())
        if self._blocks is None:
            bend = self.base.project_blocks(self.own_blocks())
            self._blocks = BlockHessian(self.base.blocks() - bend)
        return self._blocks

    def matmul(self, vector: Tensor) -> Tensor:
        if self.base.graph is None:
            return self.exact().matmul(vector)
        inner = self.base.project(vector).reshape(-1, self.num_images, self.dim)
        dense = self.bend.dense()
        at_once = max(1, (1 << 22) // max(1, self.num_images**2))
        bent = torch.cat([self._bend(part.double(), dense) for part in inner.split(at_once)])
        return self.base.matmul(vector) - self.base.project(bent.to(vector.dtype).view_as(vector))

    def _bend(self, inner: Tensor, dense: Tensor) -> Tensor:
        """sum_m V_nm <delta_nm, v_n - v_m> delta_nm for v (C, N, Z)."""
        own = (inner * self.points).sum(-1)
        products = inner @ self.points.T
        along = own[:, :, None] + own[:, None, :] - products - products.mT
        weight = dense * along
        return weight.sum(-1, keepdim=True) * self.points - weight @ self.points

    def columns(self) -> Iterator[Columns]:
        return self.exact().columns()

    def positive_part(self) -> OutputHessian:
        if self.base.unit is None or self.base.radial is not None:
            return self.exact().positive_part()
        # As of the squared distance: where the norm belongs to the network, it is the Hessian in z that is clipped.
        base = self.base
        flat = StructuredHessian(None, None, base.nodes, base.graph, None, self.dim)
        clipped = UnsquaredHessian(flat, self.points, self.bend, self.gradient).exact().positive_part()
        if isinstance(clipped, BlockHessian):
            return BlockHessian(base.project_blocks(clipped.matrix))
        once = base.project(clipped.dense())
        return DenseHessian(base.project(once.permute(2, 3, 0, 1)).permute(2, 3, 0, 1))

    def check_positive(self) -> None:
        self.exact().check_positive()

    def root(self, vector: Tensor) -> Tensor:
        return self.exact().root(vector)
