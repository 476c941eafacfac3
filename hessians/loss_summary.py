"""Value and gradients of a pair loss over very many pairs, in one sweep where the loss has them in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hessians.contrastive import ContrastiveLoss, Negatives, row_sums_and_product
from hessians.pair_loss import PairLoss, TypeWeights
from hessians.pairs import Pairs


class LossSummary(NamedTuple):
    """``value``: of the loss averaged over its population, the one that is curved. ``positive_gradient`` and
    ``negative_gradient``, (N, Z): of its two averages in u, weights included. ``active``: how many negatives are
    inside the margin, or as many as there are where a loss has no such thing."""

    value: float
    positive_gradient: Tensor
    negative_gradient: Tensor
    active: float


def summarise(loss: PairLoss, u: Tensor, pairs: Pairs) -> LossSummary:
    """The loss of raw embeddings u (N, Z), with the population counts of the pairs.

    Example:
        >>> u, pairs = torch.eye(3), Pairs.from_labels([0, 0, 1])
        >>> found = summarise(ContrastiveLoss(margin=1.0), u, pairs)
        >>> found.value, found.active
        (1.0, 0.0)
    """
    u = loss.checked(u, pairs).detach()
    if isinstance(loss, ContrastiveLoss):
        return _of_contrastive(loss, u, pairs)
    return (_of_whole_batch if loss.couples_batch else _by_autograd)(loss, u, pairs)


def trained_gradient(loss: PairLoss, summary: LossSummary, num_negatives: float) -> Tensor:
    """dL/du of the loss as it is trained: averaged over the active negatives, where the loss says so."""
    if isinstance(loss, ContrastiveLoss) and loss.negatives is Negatives.ACTIVE:
        return summary.positive_gradient + summary.negative_gradient * (
            num_negatives / max(1.0, summary.active)
        )
    return summary.positive_gradient + summary.negative_gradient


def _of_contrastive(loss: ContrastiveLoss, u: Tensor, pairs: Pairs) -> LossSummary:
    """All sums that are needed follow from Y 1 and Y z, for the positives and for all pairs."""
    origin = None if pairs.sums is None else pairs.sums.origin
    origin = u.mean(0, keepdim=True) if origin is None else origin
    points, inverse = loss.on_sphere(u) if loss.normalize else (u - origin, None)
    weights = loss.type_weights(pairs)
    if pairs.sums is not None:
        positive = loss.known_sums(points, pairs, TypeWeights(weights.positive, 0.0))
        negative = loss.known_sums(points, pairs, TypeWeights(0.0, weights.negative))
    else:
        every = row_sums_and_product(loss.graph(points, pairs), points)
        positive = row_sums_and_product(loss.positive_graph(points, pairs, weights.positive), points)
        negative = (every[0] - positive[0], every[1] - positive[1])
    gradients, squares = [], []
    for sums, product in (positive, negative):
        gradient = sums[:, None] * points - product  # L z, L the graph Laplacian of Y
        # Every pair is in two rows: sum over pairs of y d^2 = sum_i z_i . (L z)_i.
        squares.append(float((gradient * points).sum(dtype=torch.float64)))
        if inverse is not None:
            gradient = (gradient - (gradient * points).sum(1, keepdim=True) * points) * inverse[:, None]
        gradients.append(gradient)
    if loss.power == 1:
        totals = loss.sums(points, pairs)
        value = weights.positive * float(totals[0]) + weights.negative * float(totals[1])
        return LossSummary(value, gradients[0], gradients[1], float(totals[2]))
    # The weights of active negatives are -2w/|Q| each.
    total = -float(negative[0].sum(dtype=torch.float64)) / 2
    value = (squares[0] + squares[1] + loss.margin**2 * total) / 2
    active = max(0.0, total / weights.negative) if weights.negative else 0.0
    return LossSummary(value, gradients[0], gradients[1], active)


def _of_whole_batch(loss: PairLoss, u: Tensor, pairs: Pairs) -> LossSummary:
    """Of a loss that is no sum over pairs, all of which counts as the positives'."""
    with torch.enable_grad():
        leaf = u.clone().requires_grad_()
        value = loss(leaf, pairs)
        (gradient,) = torch.autograd.grad(value, leaf)
    return LossSummary(float(value.detach()), gradient, torch.zeros_like(gradient), pairs.num_negatives)


def _by_autograd(loss: PairLoss, u: Tensor, pairs: Pairs) -> LossSummary:
    gradients, values = [], []
    for positive, weight in zip((True, False), loss.type_weights(pairs), strict=True):
        with torch.enable_grad():
            leaf = u.clone().requires_grad_()
            total = leaf.sum() * 0
            for first, second, count in pairs.listed(positive):
                total = total + weight * (count * loss.pair_values(leaf[first], leaf[second], positive)).sum()
            (gradient,) = torch.autograd.grad(total, leaf)
        gradients.append(gradient)
        values.append(float(total.detach()))
    return LossSummary(sum(values), gradients[0], gradients[1], pairs.num_negatives)
