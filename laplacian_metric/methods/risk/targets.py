"""What a risk head predicts for each item: how many of its neighbours are wrong, or its loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hessians import Pairs
from hessians.pair_loss import PairLoss
from laplacian_metric.core.search import search_blocks

Target = Literal["retrieval", "pair-loss", "cross-entropy"]
POSITIVES, NEGATIVES = 16, 64  # pairs of each item that stand for all of its pairs
PAIRS_AT_ONCE = 1 << 14


def retrieval_risk(embeddings: Tensor, labels: Tensor, neighbours: int = 10) -> Tensor:
    """Return the share of each item's nearest others that are of another class, (N,).

    Args:
        embeddings: (N, Z), unit rows.
        labels: (N,).
        neighbours: k, how many of the nearest are looked at; the item itself is none of them.

    Example:
        >>> z = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 0.1], [1, 0.2], [0, 1]]))
        >>> retrieval_risk(z, torch.tensor([0, 0, 1, 1]), neighbours=2)
        tensor([0.5000, 0.5000, 1.0000, 0.5000])
    """
    if len(embeddings) <= neighbours:
        raise ValueError(
            f"neighbours is {neighbours}, but there are {len(embeddings)} items: more are needed"
        )
    labels = labels.to(embeddings.device)
    shares = [
        (labels[block.indices] != labels[rows, None]).float().mean(1)
        for rows, block in search_blocks(embeddings, neighbours)
    ]
    return torch.cat(shares)


def nearest_is_wrong(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return whether each item's nearest other is of another class, (N,) of bool.

    Example:
        >>> nearest_is_wrong(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1]))
        tensor([False, False,  True])
    """
    return retrieval_risk(embeddings, labels, 1) > 0


def batch_retrieval_risk(points: Tensor, labels: Tensor, neighbours: int) -> Tensor:
    """Return the share of wrong items among the nearest of a batch's others, (B,); for raw points (B, Z)."""
    z = F.normalize(points.detach(), dim=1)
    similarity = (z @ z.T).fill_diagonal_(-torch.inf)
    nearest = similarity.topk(min(neighbours, len(z) - 1), dim=1).indices
    return (labels[nearest] != labels[:, None]).to(z).mean(1)


def pair_losses(u: Tensor, loss: PairLoss, pairs: Pairs) -> Tensor:
    """Return the loss of each item (N,): 2 [(1 - w) mean over its positive pairs + w mean over its negative ones].

    Where every item has as many pairs of either kind, their mean is the loss itself. An item without pairs of a
    kind has nothing for that kind.

    Args:
        u: raw embeddings (N, Z).
        loss: of the pairs.
        pairs: that are averaged.

    Example:
        >>> from hessians import ContrastiveLoss
        >>> u = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> labels, loss = torch.tensor([0, 0, 1, 1]), ContrastiveLoss(negatives="all")
        >>> pairs = Pairs.from_labels(labels)
        >>> torch.isclose(pair_losses(u, loss, pairs).mean(), loss(u, pairs))
        tensor(True)
    """
    u = u.detach()
    total = u.new_zeros(len(u))
    for positive, weight in ((True, 2 * (1 - loss.negative_weight)), (False, 2 * loss.negative_weight)):
        values, counts = torch.zeros_like(total), torch.zeros_like(total)
        for listed in pairs.listed(positive):
            for first, second, count in zip(*(part.split(PAIRS_AT_ONCE) for part in listed), strict=True):
                value = count * loss.pair_values(u[first], u[second], positive)
                for item in (first, second):
                    values.index_add_(0, item, value)
                    counts.index_add_(0, item, count.to(counts))
        total += weight * values / counts.clamp(min=1)
    return total


def sampled_pairs(labels: Tensor, generator: torch.Generator) -> Pairs:
    """Return pairs that stand for all: for each item up to 16 of its class and 64 of others, drawn at random."""
    labels = labels.cpu()
    order = labels.argsort(stable=True)
    sizes = torch.unique_consecutive(labels[order], return_counts=True)[1]
    start = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    item = torch.arange(len(labels))
    place = item - start
    size = sizes.repeat_interleave(sizes)
    shift = 1 + (torch.rand(len(labels), POSITIVES, generator=generator) * (size - 1)[:, None]).long()
    match = order[start[:, None] + (place[:, None] + shift) % size[:, None]]
    others = len(labels) - size
    jump = size[:, None] + (torch.rand(len(labels), NEGATIVES, generator=generator) * others[:, None]).long()
    differ = order[(start[:, None] + jump) % len(labels)]
    alone = size > 1
    anchors = order[:, None]
    positive = (anchors.expand_as(match)[alone].flatten(), match[alone].flatten())
    negative = (anchors.expand_as(differ).flatten(), differ.flatten())
    return Pairs.from_indices((*positive, *negative), len(labels))
