r"""The Hessian M of a pair loss in the raw embeddings u of a batch, in the forms that everything downstream needs.

Both distances of the contrastive loss have Hessians of one and the same structure. With z the unit embeddings,
r = 1/|u|, P_n = I - z_n z_n^T, R = blockdiag(r_n P_n), Y the pair weights and S = diag(nodes) - Y,

    M = R (S kron I) R + blockdiag( r_n^2 (z_n q_n^T + q_n z_n^T) ).

Euclidean distance: nodes = Y 1 and q = 0; S is the signed graph Laplacian of the pairs. Arccos distance: nodes = t with
t_n = sum_j Y_nj <z_n, z_j>, and q_n = P_n (Y z)_n. (These are Eq. 105-107 of the paper with (Y z)_n split into its part
along z_n, which is t_n z_n, and the rest; r_n q_n is minus the gradient, so that the second term vanishes at a
stationary point.) Without a norm z, r and P drop out and M = S kron I. "fixed" leaves out Y in S, and "clipped" has
the positive part of S in its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hessians.graph import DenseGraph, PairGraph

# Beyond this many outputs of a batch (images x dimensions), a dense output Hessian and its eigenvectors are refused.
DENSE_OUTPUTS = 4096


class IndefiniteHessianError(ValueError):
    """A positive semi-definite output Hessian is needed, and this one has negative eigenvalues."""


class DenseSizeError(ValueError):
    """A dense output Hessian is needed, and would not fit."""


@dataclass(frozen=True)
class Columns:
    r"""A group of columns into which an output Hessian falls apart.

    With j_cn = J_n^T cotangent_cn, the group's share of diag(J^T M J) is, summed over its columns c,

        sum_n nodes_cn j_cn^2 + sum_{n,m} edges_nm j_cn j_cm + joint_c (sum_n j_cn)^2,

    each term where it is not None: C backward passes of the batch, whatever the number of pairs.
    """

    cotangents: Tensor  # (C, N, Z)
    nodes: Tensor | None = None  # (C, N)
    edges: Tensor | None = None  # (N, N), symmetric
    joint: Tensor | None = None  # (C,)


class OutputHessian(ABC):
    """A symmetric (N Z) x (N Z) matrix; N images, Z dimensions."""

    num_images: int
    dim: int
    like: Tensor  # of the dtype and on the device that M has

    @abstractmethod
    def matmul(self, vector: Tensor) -> Tensor:
        """M v for v of shape (..., N, Z)."""

    @abstractmethod
    def columns(self) -> Iterator[Columns]:
        """The groups of columns whose shares add up to diag(J^T M J) for any J."""

    @abstractmethod
    def positive_part(self) -> OutputHessian:
        """The nearest positive semi-definite matrix (of the same block structure): negative eigenvalues set to 0."""

    @abstractmethod
    def root(self, vector: Tensor) -> Tensor:
        """B v for v of shape (..., N, Z) with M = B B^T; raises IndefiniteHessianError where there is no such B."""

    @abstractmethod
    def check_positive(self) -> None:
        """Raise IndefiniteHessianError unless M is positive semi-definite."""

    def dense(self) -> Tensor:
        """M as (N, Z, N, Z); for tests and for small batches."""
        check_dense_size(self.num_images, self.dim)
        size = self.num_images * self.dim
        identity = torch.eye(size, dtype=self.like.dtype, device=self.like.device)
        product = self.matmul(identity.view(size, self.num_images, self.dim))
        return product.view(self.num_images, self.dim, self.num_images, self.dim)


def check_dense_size(num_images: int, dim: int) -> None:
    """Refuse to build an (N Z) x (N Z) matrix that would not fit."""
    if num_images * dim > DENSE_OUTPUTS:
        raise DenseSizeError(
            f"the dense output Hessian of {num_images} images in {dim} dimensions would have {num_images * dim} rows, "
            f"at most {DENSE_OUTPUTS} are allowed: use batches of at most {DENSE_OUTPUTS // dim} images"
        )


def check_eigenvalues(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The eigenvalues of a matrix of this dtype, rounding below 0 removed; an error if some are truly negative."""
    largest = values.abs().max() if values.numel() else values.sum()
    tolerance = largest * values.shape[-1] * torch.finfo(dtype or values.dtype).eps * 8
    if bool((values < -tolerance).any()):
        raise IndefiniteHessianError(
            f"the output Hessian has negative eigenvalues (down to {float(values.min()):.3g}, the largest is "
            f'{float(values.max()):.3g}): take approximation="clipped", or its positive part'
        )
    return values.clamp(min=0)


class StructuredHessian(OutputHessian):
    """R (S kron I) R plus the radial term (see the module), S = diag(nodes) - graph.

    Args:
        unit: z, (N, Z), unit rows; None where the embedding has no norm.
        inverse_norm: r, (N,); None where the embedding has no norm.
        nodes: diag(S), (N,).
        graph: Y with S = diag(nodes) - Y; None where there is no coupling between images.
        radial: q, (N, Z), rows orthogonal to those of z; None for the Euclidean distance.
        dim: Z.
    """

    def __init__(
        self,
        unit: Tensor | None,
        inverse_norm: Tensor | None,
        nodes: Tensor,
        graph: PairGraph | None,
        radial: Tensor | None,
        dim: int,
    ) -> None:
        self.unit = unit
        self.inverse_norm = inverse_norm
        self.nodes = nodes
        self.graph = graph
        self.radial = radial
        self.num_images = len(nodes)
        self.dim = dim
        self.like = nodes

    def project(self, vector: Tensor) -> Tensor:
        """R v for v of shape (..., N, Z)."""
        if self.unit is None or self.inverse_norm is None:
            return vector
        along = (vector * self.unit).sum(-1, keepdim=True)
        return (vector - along * self.unit) * self.inverse_norm[:, None]

    def matmul(self, vector: Tensor) -> Tensor:
        inner = self.project(vector)
        product = self.nodes[:, None] * inner
        if self.graph is not None:
            by_image = inner.movedim(-2, 0)
            coupled = self.graph.product(by_image.flatten(1)).view(by_image.shape).movedim(0, -2)
            product = product - coupled
        product = self.project(product)
        if self.radial is not None and self.unit is not None and self.inverse_norm is not None:
            cross = self.unit * (vector * self.radial).sum(-1, keepdim=True)
            cross = cross + self.radial * (vector * self.unit).sum(-1, keepdim=True)
            product = product + cross * self.inverse_norm[:, None].square()
        return product

    def columns(self) -> Iterator[Columns]:
        basis = torch.eye(self.dim, dtype=self.nodes.dtype, device=self.nodes.device)
        cotangents = self.project(basis[:, None, :].expand(self.dim, self.num_images, self.dim))
        edges = None if self.graph is None else -self.graph.dense()
        yield Columns(cotangents, nodes=self.nodes.expand(self.dim, -1), edges=edges)
        if self.radial is not None and self.unit is not None and self.inverse_norm is not None:
            # z q^T + q z^T = |q|/2 [(z + q/|q|)(...)^T - (z - q/|q|)(...)^T]: two columns of opposite sign.
            length = torch.linalg.vector_norm(self.radial, dim=1)
            direction = self.radial / length.clamp(min=torch.finfo(length.dtype).tiny)[:, None]
            weight = length * self.inverse_norm.square() / 2
            yield Columns(
                torch.stack([self.unit + direction, self.unit - direction]),
                nodes=torch.stack([weight, -weight]),
            )

    def diagonal_per_dimension(self) -> Tensor:
        """The node term A: the diagonals of the blocks M_nn without their share of the edges, (N, Z)."""
        if self.unit is None or self.inverse_norm is None:
            return self.nodes[:, None].expand(-1, self.dim)
        diagonal = self.nodes[:, None] * (1 - self.unit.square())
        if self.radial is not None:
            diagonal = diagonal + 2 * self.unit * self.radial
        return diagonal * self.inverse_norm[:, None].square()

    def edge_coefficients(self, first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
        """y_p r_i r_j <z_i, z_j> z_ik z_jk of pairs, (P, Z): what of minus the diagonals of M_ij only pairs have."""
        if self.unit is None or self.inverse_norm is None:
            return weight.new_zeros(len(weight), self.dim)
        products = self.unit.index_select(0, first).mul_(self.unit.index_select(0, second))
        scale = weight * self.inverse_norm[first] * self.inverse_norm[second] * products.sum(1)
        return products.mul_(scale[:, None])

    def laplacian(self) -> Tensor:
        """S, (N, N)."""
        matrix = torch.diag(self.nodes)
        return matrix if self.graph is None else matrix - self.graph.dense()

    def positive_part(self) -> OutputHessian:
        if self.radial is not None:
            return self.exact().positive_part()
        if self.graph is None:
            clamped = self.nodes.clamp(min=0)
            return StructuredHessian(self.unit, self.inverse_norm, clamped, None, None, self.dim)
        values, vectors = torch.linalg.eigh(self.laplacian().double())
        clipped = ((vectors * values.clamp(min=0)) @ vectors.T).to(self.nodes.dtype)
        nodes = clipped.diagonal().clone()
        graph = DenseGraph(-(clipped - torch.diag(nodes)))
        return StructuredHessian(self.unit, self.inverse_norm, nodes, graph, None, self.dim)

    def blocks(self) -> Tensor:
        """The blocks M_nn without their share of the edges, (N, Z, Z)."""
        identity = torch.eye(self.dim, dtype=self.nodes.dtype, device=self.nodes.device)
        blocks = self.project_blocks(self.nodes[:, None, None] * identity)
        if self.radial is not None and self.unit is not None and self.inverse_norm is not None:
            cross = (self.unit * self.inverse_norm.square()[:, None])[:, :, None] * self.radial[:, None, :]
            blocks = blocks + cross + cross.mT
        return blocks

    def project_blocks(self, blocks: Tensor) -> Tensor:
        """R_n B_n R_n for symmetric B (N, Z, Z)."""
        once = self.project(blocks.transpose(0, 1))  # (Z, N, Z)
        return self.project(once.permute(2, 1, 0)).transpose(0, 1)

    def exact(self) -> MatrixHessian:
        """M by its blocks: those of single images where no two are coupled, else all of them."""
        return BlockHessian(self.blocks()) if self.graph is None else DenseHessian(self.dense())

    def check_positive(self) -> None:
        if self.radial is not None:
            self.exact().check_positive()
        elif self.graph is None:
            check_eigenvalues(self.nodes)
        else:
            check_eigenvalues(torch.linalg.eigvalsh(self.laplacian().double()), self.nodes.dtype)

    def root(self, vector: Tensor) -> Tensor:
        if self.radial is not None:
            return self.exact().root(vector)
        if self.graph is None:
            return self.project(check_eigenvalues(self.nodes).sqrt()[:, None] * vector)
        values, vectors = torch.linalg.eigh(self.laplacian().double())
        factor = (vectors * check_eigenvalues(values, vector.dtype).sqrt()).to(vector.dtype)
        return self.project(torch.einsum("nm,...mk->...nk", factor, vector))


class MatrixHessian(OutputHessian):
    """An output Hessian that is stored as symmetric matrices, which need no structure."""

    def __init__(self, matrix: Tensor) -> None:
        self.num_images, self.dim = matrix.shape[:2]
        self.matrix = self.like = matrix

    @abstractmethod
    def squares(self) -> Tensor:
        """The matrices along the diagonal of M, (B, S, S) with B S = N Z."""

    def _times(self, squares: Tensor, vector: Tensor) -> Tensor:
        """The product of matrices (B, S, S) with v (..., N, Z)."""
        split = vector.reshape(*vector.shape[:-2], *squares.shape[:2])
        return torch.einsum("bst,...bt->...bs", squares, split).view_as(vector)

    def matmul(self, vector: Tensor) -> Tensor:
        return self._times(self.squares(), vector)

    def positive_part(self) -> MatrixHessian:
        values, vectors = torch.linalg.eigh(self.squares().double())
        clipped = (vectors * values.clamp(min=0)[:, None]) @ vectors.mT
        return type(self)(clipped.to(self.matrix.dtype).view_as(self.matrix))

    def check_positive(self) -> None:
        check_eigenvalues(torch.linalg.eigvalsh(self.squares().double()), self.matrix.dtype)

    def root(self, vector: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(self.squares().double())
        factor = vectors * check_eigenvalues(values, vector.dtype).sqrt()[:, None]
        return self._times(factor.to(vector.dtype), vector)


class CoupledHessian(OutputHessian):
    """An output Hessian that gives, for each dimension k, what it couples of two images: M_{nk,mk}."""

    @abstractmethod
    def coupling(self, k: int) -> Tensor:
        """M_{nk,mk} of all images, (N, N)."""


class DenseHessian(MatrixHessian, CoupledHessian):
    """An output Hessian stored as its matrix (N, Z, N, Z)."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(matrix)
        check_dense_size(self.num_images, self.dim)

    def squares(self) -> Tensor:
        size = self.num_images * self.dim
        return self.matrix.reshape(1, size, size)

    def columns(self) -> Iterator[Columns]:
        values, vectors = (part[0] for part in torch.linalg.eigh(self.squares().double()))
        dtype = self.matrix.dtype
        largest = values.abs().max() if values.numel() else values.sum()
        keep = values.abs() > largest * torch.finfo(torch.float64).eps
        cotangents = vectors[:, keep].T.reshape(-1, self.num_images, self.dim).to(dtype)
        yield Columns(cotangents, joint=values[keep].to(dtype))

    def dense(self) -> Tensor:
        return self.matrix

    def coupling(self, k: int) -> Tensor:
        return self.matrix[:, k, :, k]


class BlockHessian(MatrixHessian):
    """An output Hessian that couples no two images, stored as the symmetric block of each, (N, Z, Z)."""

    def squares(self) -> Tensor:
        return self.matrix

    def diagonal_per_dimension(self) -> Tensor:
        """The diagonals of the blocks, (N, Z)."""
        return self.matrix.diagonal(dim1=1, dim2=2)

    def columns(self) -> Iterator[Columns]:
        values, vectors = torch.linalg.eigh(self.matrix.double())
        dtype = self.matrix.dtype
        yield Columns(vectors.permute(2, 0, 1).to(dtype), nodes=values.T.to(dtype))
