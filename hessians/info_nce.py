r"""InfoNCE of the views in a batch, and its generalised Gauss-Newton matrix in the raw embeddings.

With z_i = u_i/|u_i|, cosines c_ij, logits s_ij = c_ij/tau and p_i the softmax of row i over all j but i,

    L = -(1/2|P|) sum over ordered positive pairs (i, j) of log p_ij,

the mean over all views where each image has two. The logits are linearised; with w_i = (positives of i)/(2|P|), the
Jacobians a_ij = ds_ij/du_i = P_i z_j/(tau |u_i|), and P_i = I - z_i z_i^T, the matrix is

    M = sum_i w_i Cov_{j ~ p_i}( e_i kron a_ij + e_j kron a_ji ).

"fixed" takes the other images, the keys, as constants: M is then one block w_i Cov_{p_i}(a_ij) for each image. "full"
has both sides; it is positive semi-definite too, as a covariance, so that "clipped" is the same. Unlike this matrix the
Hessian of the loss itself is indefinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from hessians.approximations import Approximation
from hessians.checks import check_finite, without_autocast
from hessians.output_blocks import OutputBlocks
from hessians.output_hessian import BlockHessian, Columns, CoupledHessian, DenseHessian, OutputHessian
from hessians.pair_loss import PairBlocks, PairLoss
from hessians.pairs import Pairs

MOST_IMAGES = 4096


@dataclass(frozen=True)
class InfoNCELoss(PairLoss):
    """The contrastive loss of views: each is to find another of its image among all others of the batch.

    Its value depends on which images share a batch: the number of views in it, and the temperature, belong to every
    result. Where an image has more than two views every positive has a softmax over all others, the other positives
    among them.

    Attributes:
        temperature: tau.

    Example:
        >>> u, pairs = torch.eye(4)[[0, 0, 1, 1]], Pairs.from_labels([0, 1, 0, 1])
        >>> round(InfoNCELoss(temperature=1.0)(u, pairs).item(), 4)  # log(2 + e), its own twin being of another image
        1.5514
    """

    temperature: float = 0.1

    couples_batch: ClassVar[bool] = True
    normalize: ClassVar[bool] = True
    negative_weight = 0.5  # no option: a softmax has no weights of its own

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}, a positive number is needed")

    def __call__(self, u: Tensor, pairs: Pairs) -> Tensor:
        """The loss of raw embeddings u (N, Z), a differentiable scalar; 0 where there is no positive pair."""
        u = self.checked(u, pairs)
        positives, others = self._masks(pairs)
        if not pairs.num_positives:
            return u.sum() * 0
        z = torch.nn.functional.normalize(u, eps=torch.finfo(u.dtype).tiny)
        logits = (z @ z.T / self.temperature).masked_fill(~others, -torch.inf)
        log_p = logits.log_softmax(1).masked_fill(~others, 0)
        return -(positives.to(u.dtype) * log_p).sum() / (2 * pairs.num_positives)

    @without_autocast
    def output_hessian(
        self, u: Tensor, pairs: Pairs, approximation: str | Approximation = Approximation.FIXED
    ) -> OutputHessian:
        """The GGN in u (N, Z): "fixed" has constant keys, one block for each image; "full" and "clipped" both sides."""
        approximation = Approximation.parse(approximation)
        if approximation is Approximation.POSITIVE:
            raise ValueError(
                'approximation "positive" keeps the positive pairs alone, but InfoNCE is a softmax over all: take '
                '"fixed" (constant keys) or "full" (both sides)'
            )
        u = self.checked(u, pairs).detach()
        positives, others = self._masks(pairs)
        total = 2 * pairs.num_positives
        weight = positives.sum(1).double() / total if total else torch.zeros(len(u), dtype=torch.float64)
        softmax = Softmax(u, others, weight.to(u.device), self.temperature)
        return KeysFixed(softmax) if approximation is Approximation.FIXED else BothSides(softmax)

    def _masks(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """How often each pair is positive, and which pairs there are at all; (N, N) each."""
        number = pairs.num_images
        if number > MOST_IMAGES:
            raise ValueError(
                f"{number} images in one batch of InfoNCE, at most {MOST_IMAGES} are possible: take smaller batches"
            )
        positives, negatives = pairs.block(0, number)
        others = (positives + negatives) > 0
        if bool((others.sum(1) == 0).any()):
            raise ValueError(
                "an image has no other one that it could be told from: take batches of at least 2 images"
            )
        return positives, others

    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        """Not defined: the value of a pair depends on all other images of the batch."""
        raise TypeError("InfoNCE has no value for a pair alone: call the loss with a whole batch")

    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        """Not defined, see `pair_values`."""
        raise TypeError("InfoNCE has no curvature for a pair alone: take output_hessian of a whole batch")


class Softmax:
    """What the matrix is made of, in float64: unit rows z (N, Z), r = 1/(tau |u|) (N,), cosines, p and w."""

    def __init__(self, u: Tensor, others: Tensor, weight: Tensor, temperature: float) -> None:
        wide = u.double()
        norm = torch.linalg.vector_norm(wide, dim=1)
        check_finite("1/|u|", norm.reciprocal())
        self.like = u
        self.unit: Tensor = wide / norm[:, None]
        self.scale: Tensor = (temperature * norm).reciprocal()
        self.cosine: Tensor = self.unit @ self.unit.T
        logits = (self.cosine / temperature).masked_fill(~others, -torch.inf)
        self.probability: Tensor = logits.softmax(1)
        self.weight = weight

    @cached_property
    def joint(self) -> Tensor:
        """w_i p_ij, (N, N)."""
        return self.weight[:, None] * self.probability

    @cached_property
    def mean(self) -> Tensor:
        """E a_ij over j, (N, Z)."""
        p, z = self.probability, self.unit
        along = (p * self.cosine).sum(1, keepdim=True)
        return self.scale[:, None] * (p @ z - along * z)


class KeysFixed(BlockHessian):
    """The blocks w_i Cov_{p_i}(a_ij), made when they are asked for; their diagonals need no block.

    Args:
        softmax: of the batch.
    """

    def __init__(self, softmax: Softmax) -> None:
        self.softmax = softmax
        self.num_images, self.dim = softmax.unit.shape
        self.like = softmax.like

    @property
    def matrix(self) -> Tensor:  # type: ignore[override]
        """The blocks, (N, Z, Z)."""
        s, dtype = self.softmax, self.like.dtype
        keys, z = s.unit.to(dtype), s.unit.to(dtype)
        mean = (s.probability @ s.unit).to(dtype)
        weight = (s.joint * s.scale.square()[:, None]).sqrt().to(dtype)
        blocks = keys.new_empty(self.num_images, self.dim, self.dim)
        for i in range(self.num_images):
            centred = (keys - mean[i]).mul_(weight[i, :, None])
            torch.mm(centred.T, centred, out=blocks[i])
        # P C P = C - z (C z)^T - (C z) z^T + z z^T (z^T C z), C the covariance of the keys.
        product = torch.einsum("nkl,nl->nk", blocks, z)
        half = product - z * ((product * z).sum(1, keepdim=True) / 2)
        blocks.baddbmm_(z[:, :, None], half[:, None, :], alpha=-1)
        return blocks.baddbmm_(half[:, :, None], z[:, None, :], alpha=-1)

    def diagonal_per_dimension(self) -> Tensor:
        """The diagonals of the blocks, (N, Z), by four products with N x N matrices."""
        s = self.softmax
        p, z, c = s.probability, s.unit, s.cosine
        pc = p * c
        second = p @ z.square() - 2 * z * (pc @ z) + z.square() * (pc * c).sum(1, keepdim=True)
        variance = s.scale.square()[:, None] * second - s.mean.square()
        return (s.weight[:, None] * variance).clamp(min=0).to(self.like.dtype)

    def positive_part(self) -> KeysFixed:
        return self

    def check_positive(self) -> None:
        """Nothing to check: covariances are positive semi-definite."""


class BothSides(CoupledHessian, OutputBlocks):
    """M of the module with both sides of every pair, by products with N x N matrices; it is never built.

    Args:
        softmax: of the batch.
    """

    coupled = True

    def __init__(self, softmax: Softmax) -> None:
        self.softmax = softmax
        self.num_images, self.dim = softmax.unit.shape
        self.like = softmax.like
        s = softmax
        # p_in r_n, and the same times the cosine: row i's part in the Jacobian of image n.
        self._u: Tensor = s.probability * s.scale
        self._v: Tensor = self._u * s.cosine
        # w_n p_nm + w_m p_mn, what both rows of a pair weigh.
        self._q: Tensor = s.joint + s.joint.T

    def _project(self, vector: Tensor) -> Tensor:
        s = self.softmax
        along = (vector * s.unit).sum(-1, keepdim=True)
        return (vector - along * s.unit) * s.scale[:, None]

    def matmul(self, vector: Tensor) -> Tensor:
        s = self.softmax
        inner = self._project(vector.double())
        one_sided = inner @ s.unit.T
        change = one_sided + one_sided.mT  # of the logits
        centred = change - (s.probability * change).sum(-1, keepdim=True)
        pulled = s.joint * centred
        return self._project((pulled + pulled.mT) @ s.unit).to(vector.dtype)

    def coupling(self, k: int) -> Tensor:
        s, dtype = self.softmax, self.like.dtype
        # a_nj along k, and row i's Jacobian of image n: p_in a_ni, and for n = i the mean over j.
        along = s.scale[:, None] * (s.unit[:, k] - s.cosine * s.unit[:, k, None])
        pulled = s.probability * along.T
        pulled.diagonal().add_(s.mean[:, k])
        squares = torch.diag((self._q * along.square()).sum(1))
        means = pulled.T.to(dtype) @ (s.weight[:, None] * pulled).to(dtype)
        return (self._q * along * along.T + squares).to(dtype) - means

    def sum_over_images(self, inner: Tensor) -> Tensor:
        s, z, u, v = self.softmax, self.softmax.unit, self._u, self._v
        r, q, c, w = s.scale, self._q, s.cosine, s.weight
        # Own blocks: sum_nj K_nn q_nj a_nj a_nj^T with a_nj = r_n (z_j - c_nj z_n).
        own = q * (inner.diagonal() * r.square())[:, None]
        total = z.T @ (own.sum(0)[:, None] * z) + z.T @ ((own * c.square()).sum(1)[:, None] * z)
        cross = z.T @ (own * c) @ z
        total = total - cross - cross.T
        # Pairs: sum_nm K_nm q_nm r_n r_m (z_m - c z_n)(z_n - c z_m)^T; q is 0 on the diagonal.
        pair = inner * q * r[:, None] * r
        ends = pair * c
        total = total + z.T @ pair.T @ z + z.T @ (ends * c) @ z
        total = total - z.T @ (ends.sum(0)[:, None] * z) - z.T @ (ends.sum(1)[:, None] * z)
        # Means: G_i = u_i z_i^T - diag(v_i) Z + e_i m_i^T, sum_i w_i G_i^T K G_i.
        m, uk = s.mean, u @ inner
        total = total - z.T @ ((w * (uk * u).sum(1))[:, None] * z)
        total = total - z.T @ (inner * (v.T @ (w[:, None] * v))) @ z
        total = total - m.T @ ((w * inner.diagonal())[:, None] * m)
        first = z.T @ (w[:, None] * ((uk * v) @ z))
        second = z.T @ ((w * uk.diagonal())[:, None] * m)
        third = ((w[:, None] * v * inner) @ z).T @ m
        return total + first + first.T - second - second.T + third + third.T

    def inner_products(self, output: Tensor) -> Tensor:
        s, z, u, v = self.softmax, self.softmax.unit, self._u, self._v
        r, q, c, w = s.scale, self._q, s.cosine, s.weight
        zaz = z @ output @ z.T
        length = zaz.diagonal()
        # <A, a_nm a_mn^T> = a_mn^T A a_nm, and of an image with itself sum_j q_nj a_nj^T A a_nj.
        between = zaz - c * (length[:, None] + length) + c.square() * zaz
        total = q * r[:, None] * r * between
        squares = length - 2 * c * zaz + c.square() * length[:, None]
        total = total + torch.diag(r.square() * (q * squares).sum(1))
        mean = s.mean
        am = mean @ output
        # g_i[n] = u_in z_i - v_in z_n + [n = i] m_i.
        f = v * zaz
        cross = u.T @ (w[:, None] * f)
        total = total - u.T @ ((w * length)[:, None] * u) + cross + cross.T - (v.T @ (w[:, None] * v)) * zaz
        # n = i: m_i with u_im z_i - v_im z_m.
        mixed = w[:, None] * (u * (am * z).sum(1)[:, None] - v * (am @ z.T))
        return total - mixed - mixed.T - torch.diag(w * (am * mean).sum(1))

    def absolute_contributions(self, gram: Tensor) -> Tensor:
        r = self.softmax.scale
        return (self._q * r[:, None] * r * gram.abs()).sum() + (
            self._q.sum(1) * r.square() * gram.diagonal().abs()
        ).sum()

    def columns(self) -> Iterator[Columns]:
        return self.exact().columns()

    def exact(self) -> DenseHessian:
        """M itself, for small batches."""
        return DenseHessian(self.dense())

    def positive_part(self) -> BothSides:
        return self

    def check_positive(self) -> None:
        """Nothing to check: a sum of covariances is positive semi-definite."""

    def root(self, vector: Tensor) -> Tensor:
        return self.exact().root(vector)
