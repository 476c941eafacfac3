"""Value and gradients of a pair loss over very many pairs, in one sweep where the loss has them in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hessians.checks import without_autocast
from hessians.contrastive import ContrastiveLoss, Negatives, row_sums_and_product
from hessians.pair_loss import PairLoss, TypeWeights
from hessians.pairs import Pairs, PairSums

ROWS = 1 << 16  # images whose gradients are computed at a time, where their sums are known


class LossSummary(NamedTuple):
    """``value``: of the loss averaged over its population, the one that is curved. ``positive_gradient`` and
    ``negative_gradient``, (N, Z): of its two averages in u, weights included. ``active``: how many negatives are
    inside the margin, or as many as there are where a loss has no such thing."""

    value: float
    positive_gradient: Tensor
    negative_gradient: Tensor
    active: float


@without_autocast
def summarise(loss: PairLoss, u: Tensor, pairs: Pairs) -> LossSummary:
    """The loss of raw embeddings u (N, Z), with the population counts of the pairs.

    Example:
        >>> u, pairs = torch.eye(3), Pairs.from_labels([0, 0, 1])
        >>> summary = summarise(ContrastiveLoss(margin=1.0), u, pairs)
        >>> summary.value, summary.active
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
    weights = loss.type_weights(pairs)
    if pairs.sums is not None:
        positive, negative, square, total = _from_sums(loss, u, pairs.sums, weights)
    else:
        points, inverse = loss.on_sphere(u) if loss.normalize else (u - u.mean(0, keepdim=True), None)
        every = row_sums_and_product(loss.graph(points, pairs), points)
        sums = row_sums_and_product(loss.graph(points, pairs, TypeWeights(weights.positive, 0.0)), points)
        rest = (every[0] - sums[0], every[1] - sums[1])
        (positive, square), (negative, other) = (_gradient(points, inverse, *part) for part in (sums, rest))
        if loss.power == 1:
            totals = loss.sums(points, pairs)
            value = weights.positive * float(totals[0]) + weights.negative * float(totals[1])
            return LossSummary(value, positive, negative, float(totals[2]))
        square, total = square + other, -float(rest[0].sum(dtype=torch.float64)) / 2
    active = max(0.0, total / weights.negative) if weights.negative else 0.0
    return LossSummary((square + loss.margin**2 * total) / 2, positive, negative, active)


def _from_sums(
    loss: ContrastiveLoss, u: Tensor, sums: PairSums, weights: TypeWeights
) -> tuple[Tensor, Tensor, float, float]:
    """Both gradients (N, Z), the sum of y d^2 over all pairs, and what all active negatives weigh, 2w/|Q| each.

    A few images at a time, since their sums are known.
    """
    gradients, squares, total = (torch.empty_like(u), torch.empty_like(u)), 0.0, 0.0
    for start in range(0, len(u), ROWS):
        part = slice(start, start + ROWS)
        if sums.origin is None:
            points, inverse = loss.on_sphere(u[part])
        else:
            points, inverse = u[part] - sums.origin, None
        part_sums = sums._replace(class_of=sums.class_of[part], active=sums.active[part])
        for into, chosen in zip(
            gradients, (TypeWeights(weights.positive, 0.0), TypeWeights(0.0, weights.negative)), strict=True
        ):
            row_sums, product = loss.known_sums(points, part_sums, chosen)
            into[part], square = _gradient(points, inverse, row_sums, product)
            squares += square
        total -= float(row_sums.sum(dtype=torch.float64)) / 2
    return *gradients, squares, total


def _gradient(
    points: Tensor, inverse: Tensor | None, row_sums: Tensor, product: Tensor
) -> tuple[Tensor, float]:
    """d/du of pairs with the weights Y, (N, Z), and the sum over them of y d^2, from Y 1 and Y z."""
    gradient = row_sums[:, None] * points - product  # L z, L the graph Laplacian of Y
    # Every pair is in two rows: sum over pairs of y d^2 = sum_i z_i . (L z)_i.
    square = float((gradient * points).sum(dtype=torch.float64))
    if inverse is not None:
        gradient = (gradient - (gradient * points).sum(1, keepdim=True) * points) * inverse[:, None]
    return gradient, square


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
