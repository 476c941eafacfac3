"""Which triplets are trained on: hard ones of a batch, or negatives out of a cache of embedded training images.

A triplet of anchor, positive and negative is hard where it violates |a - p|^2 < |a - n|^2 - margin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Triplets(NamedTuple):
    """Positions (T,) in a batch."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


def pairwise(x: Tensor) -> Tensor:
    """|x_i - x_j|^2 (N, N) of embeddings (N, D), differentiable, by differences.

    Example:
        >>> pairwise(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
        tensor([[ 0., 25.],
                [25.,  0.]])
    """
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()


def batch_triplets(
    squared: Tensor,
    labels: Tensor,
    margin: float | None,
    negatives: int,
    generator: torch.Generator | None = None,
) -> Triplets:
    """For every anchor and positive of a batch some of its negatives, drawn anew, where the triplet is hard.

    Not the nearest ones: a network with random weights that is given only these makes all images alike.

    Args:
        squared: (N, N), squared distances.
        labels: (N,).
        margin: of the constraint; None takes all triplets for hard.
        negatives: how many are drawn, without repeats, those that satisfy the constraint included.
        generator: of the draws; torch's global one without it.

    Example:
        >>> squared = pairwise(torch.tensor([[0.0], [1.0], [1.5]]))
        >>> batch_triplets(squared, torch.tensor([0, 0, 1]), 0.0, 1)  # 0.25 < 1, and 2.25 > 1
        Triplets(anchor=tensor([1]), positive=tensor([0]), negative=tensor([2]))
    """
    if labels.shape != squared.shape[:1]:
        raise ValueError(f"labels has {labels.numel()} entries for {len(squared)} embeddings")
    squared = squared.detach()
    same = labels[:, None] == labels
    anchor, positive = (same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)).nonzero(
        as_tuple=True
    )
    device = squared.device if generator is None else generator.device
    lots = torch.rand(len(anchor), len(labels), generator=generator, device=device).to(squared.device)
    drawn, negative = lots.masked_fill_(same[anchor], 2.0).topk(min(negatives, len(labels)), largest=False)
    # What has the anchor's own class comes last, where there are no more negatives.
    against = squared[anchor[:, None], negative].masked_fill(drawn > 1, torch.inf)
    row, column = _violates(squared[anchor, positive][:, None], against, margin).nonzero(as_tuple=True)
    return Triplets(anchor[row], positive[row], negative[row, column])


def laid_out(labels: Tensor, negatives: int) -> Triplets:
    """The triplets of a batch that `mined_batches` made: groups of an anchor, a positive and so many negatives.

    A negative with the anchor's label fills an empty place, and makes no triplet.

    Example:
        >>> laid_out(torch.tensor([0, 0, 1, 0, 2, 2, 0, 1]), 2).negative.tolist()
        [2, 6, 7]
    """
    size = 2 + negatives
    groups = labels.view(-1, size) if len(labels) % size == 0 else None
    if groups is None or not bool((groups[:, 0] == groups[:, 1]).all()):
        raise ValueError(
            f"the batch of {len(labels)} images is not made of groups of an anchor, its positive and {negatives} "
            'negatives, which the training loop makes for mining="cache": use mining="batch" with batches of your own'
        )
    row, column = (groups[:, 2:] != groups[:, :1]).nonzero(as_tuple=True)
    return Triplets(size * row, size * row + 1, size * row + 2 + column)


def mined_batches(
    embed: Callable[[Tensor], Tensor],
    labels: Tensor,
    anchors: Sequence[Tensor],
    *,
    cache: int,
    negatives: int,
    margin: float | None,
    generator: torch.Generator,
) -> list[Tensor]:
    """What is read in place of batches of anchors: groups of an anchor, a positive and hard negatives, for `laid_out`.

    A positive is any other image of the anchor's class. Negatives are the anchor's nearest of other classes in a cache
    of images that is drawn anew; only those count whose triplets are hard, and an anchor that has none is left out.
    A place that stays empty has the anchor itself.

    Args:
        embed: gives embeddings (n, D) of the images at positions (n,).
        labels: (N,), of all images.
        anchors: positions (B,) of each batch.
        cache: how many images are drawn.
        negatives: at most so many of an anchor.
        margin: of the constraint; None takes all triplets for hard.
        generator: of the draws.

    Example:
        >>> x, labels = torch.tensor([[0.0], [1.0], [1.5], [9.0]]), torch.tensor([0, 0, 1, 1])
        >>> options = {"cache": 4, "negatives": 2, "margin": 0.0, "generator": torch.Generator().manual_seed(0)}
        >>> mined_batches(lambda rows: x[rows], labels, [torch.tensor([0, 1])], **options)
        [tensor([1, 0, 2, 1])]
    """
    if not anchors:
        return []
    device = generator.device
    drawn = torch.randperm(len(labels), generator=generator, device=device)[:cache].cpu().sort().values
    flat = torch.cat(list(anchors)).cpu()
    labels = labels.cpu()
    positives = _positives(labels, flat, torch.rand(len(flat), generator=generator, device=device).cpu())
    needed, where = torch.unique(torch.cat([flat, positives, drawn]), return_inverse=True)
    points = embed(needed)
    a, p, c = where.split([len(flat), len(flat), len(drawn)])
    cached, cached_labels = points[c], labels[drawn].to(points.device)
    batches, start = [], 0
    for rows in anchors:
        own = slice(start, start + len(rows))
        start += len(rows)
        place, is_hard = _hardest(
            points[a[own]],
            points[p[own]],
            cached,
            labels[flat[own]].to(points.device)[:, None] == cached_labels,
            margin,
            negatives,
        )
        batches.append(_groups(flat[own], positives[own], drawn[place.cpu()], is_hard.cpu(), negatives))
    return batches


def _positives(labels: Tensor, anchors: Tensor, chance: Tensor) -> Tensor:
    """For every anchor another image of its class, drawn by a chance (B,) in [0, 1); itself where it is alone."""
    order = labels.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    _, which, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    first = (sizes.cumsum(0) - sizes)[which[anchors]]
    size = sizes[which[anchors]]
    others = (size - 1).clamp(min=1)
    step = 1 + (chance.double() * others).long().clamp(max=others - 1)
    return order[first + (place[anchors] - first + step) % size]


def _hardest(
    anchor: Tensor, positive: Tensor, cached: Tensor, same: Tensor, margin: float | None, negatives: int
) -> tuple[Tensor, Tensor]:
    """Places (B, K) in the cache of the nearest of other classes, and whether their triplets are hard."""
    # By a product, after what all have in common is taken off: of points that are far from the origin it has no digits.
    centre = cached.mean(0)
    anchor, positive, cached = anchor - centre, positive - centre, cached - centre
    sums = anchor.square().sum(1, keepdim=True) + cached.square().sum(1)
    squared = (sums - 2 * (anchor @ cached.T)).masked_fill(same, torch.inf)
    near, place = squared.topk(min(negatives, len(cached)), largest=False)
    to_positive = (anchor - positive).square().sum(1, keepdim=True)
    return place, _violates(to_positive, near, margin)


def _violates(positive: Tensor, negative: Tensor, margin: float | None) -> Tensor:
    """Which triplets violate the constraint; a negative at infinity is none."""
    violates = negative.isfinite()
    return violates if margin is None else violates & ~(positive < negative - margin)


def _groups(anchor: Tensor, positive: Tensor, negative: Tensor, is_hard: Tensor, negatives: int) -> Tensor:
    """The positions of a batch. Without any hard triplet it is one group of the first anchor alone."""
    kept = is_hard.any(1) & (positive != anchor)
    if not bool(kept.any()):
        return anchor[:1].repeat(2 + negatives)
    filled = anchor[:, None].repeat(1, negatives)
    filled[:, : negative.shape[1]] = torch.where(is_hard, negative, anchor[:, None])
    return torch.cat([anchor[:, None], positive[:, None], filled], dim=1)[kept].flatten()
