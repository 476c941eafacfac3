"""What a pair loss is: a value for each pair, a mask, the Hessian blocks of a pair, and how pairs are averaged.

A new loss implements ``pair_values`` and ``pair_blocks``; value, output Hessian and all approximations
follow from them. ``ContrastiveLoss`` overrides what its structure makes cheaper.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from hessians.approximations import Approximation
from hessians.checks import (
    CurvatureWarning,
    check_finite,
    check_matrix,
    check_same_device,
    compute_dtype,
    without_autocast,
)
from hessians.output_hessian import DenseHessian, OutputHessian, check_dense_size
from hessians.pairs import Pairs


class PairBlocks(NamedTuple):
    """The Hessian of P pair values in the two raw embeddings of each pair, as pulled back by the Jacobian of u.

    ``first`` is H_ii, ``cross`` is H_ij with H_ij[k, l] = d2/(du_i[k] du_j[l]), ``second`` is H_jj; each (P, Z, Z).
    """

    first: Tensor
    cross: Tensor
    second: Tensor


class TypeWeights(NamedTuple):
    """What one pair of each type weighs: 2(1 - w)/|P| and 2w/|Q|; 0 for a type that has no pair."""

    positive: float
    negative: float


class PairLoss(ABC):
    """2 [(1 - w) average over the positive pairs + w average over the negative pairs], w = ``negative_weight``.

    Where ``couples_batch``, the value is no sum over pairs: it depends on which images share a batch, so that a data
    set's curvature is one of batches whatever the approximation.
    """

    negative_weight: float
    couples_batch: ClassVar[bool] = False

    @abstractmethod
    def pair_values(self, first: Tensor, second: Tensor, positive: bool) -> Tensor:
        """The value of each pair from its two raw embeddings (P, Z), differentiable; (P,)."""

    @abstractmethod
    def pair_blocks(self, first: Tensor, second: Tensor, positive: bool) -> PairBlocks:
        """The Hessian blocks of each pair's value, masked; signs included."""

    def checked(self, u: Tensor, pairs: Pairs) -> Tensor:
        """u (N, Z) in the dtype that is computed in; refused if it does not fit the pairs or is not finite."""
        check_matrix("u", u)
        if not isinstance(pairs, Pairs):
            raise TypeError(f"pairs is a {type(pairs).__name__}: for labels pass Pairs.from_labels(labels)")
        if len(u) != pairs.num_images:
            raise ValueError(f"the pairs are over {pairs.num_images} images for {len(u)} embeddings")
        check_same_device(u=u, pairs=torch.empty(0, device=pairs.device))
        check_finite("u", u)
        return u.to(compute_dtype(u))

    def type_weights(self, pairs: Pairs) -> TypeWeights:
        """The weight of one positive and one negative pair in the averages over the population."""
        positive = 2 * (1 - self.negative_weight) / pairs.num_positives if pairs.num_positives else 0.0
        negative = 2 * self.negative_weight / pairs.num_negatives if pairs.num_negatives else 0.0
        return TypeWeights(positive, negative)

    def __call__(self, u: Tensor, pairs: Pairs) -> Tensor:
        """The loss of raw embeddings u (N, Z), a differentiable scalar."""
        u = self.checked(u, pairs)
        total = u.sum() * 0
        for positive, weight in zip((True, False), self.type_weights(pairs), strict=True):
            for first, second, count in pairs.listed(positive):
                total = total + weight * (count * self.pair_values(u[first], u[second], positive)).sum()
        return total

    @without_autocast
    def output_hessian(
        self, u: Tensor, pairs: Pairs, approximation: str | Approximation = Approximation.FULL
    ) -> OutputHessian:
        """The Hessian of the loss in u (N, Z), or an approximation of it, with the weights of the population."""
        approximation = Approximation.parse(approximation)
        u = self.checked(u, pairs)
        warn_about_pairs(pairs, approximation)
        check_dense_size(*u.shape)
        u = u.detach()
        num, dim = u.shape
        matrix = u.new_zeros(num, num, dim, dim)
        for positive, weight in zip((True, False), self.type_weights(pairs), strict=True):
            if approximation is Approximation.POSITIVE:
                weight = 1 / pairs.num_positives if positive and pairs.num_positives else 0.0
            for first, second, count in pairs.listed(positive):
                blocks = self.pair_blocks(u[first], u[second], positive)
                scale = (weight * count.to(u.dtype))[:, None, None]
                matrix.index_put_((first, first), scale * blocks.first, accumulate=True)
                matrix.index_put_((second, second), scale * blocks.second, accumulate=True)
                if approximation is not Approximation.FIXED:
                    matrix.index_put_((first, second), scale * blocks.cross, accumulate=True)
                    matrix.index_put_((second, first), scale * blocks.cross.mT, accumulate=True)
        hessian = DenseHessian(matrix.transpose(1, 2))
        return hessian.positive_part() if approximation is Approximation.CLIPPED else hessian


def warn_about_pairs(pairs: Pairs, approximation: Approximation) -> None:
    """Say so where the pairs are legal and carry less than their user may think."""
    if not pairs.num_positives and (approximation is Approximation.POSITIVE or not pairs.num_negatives):
        message = "there is no positive pair and no negative pair: the curvature is 0"
        if pairs.num_negatives:
            message = 'there is no positive pair: the curvature of "positive" is 0'
    elif not pairs.num_positives:
        message = "there is no positive pair: nothing but negative curvature, which a posterior clamps to 0"
    elif not pairs.num_negatives and approximation is not Approximation.POSITIVE:
        message = "there is no negative pair (one class only): the curvature knows nothing of what separates classes"
    else:
        return
    warnings.warn(message, CurvatureWarning, stacklevel=3)
