"""Random triplets of a batch."""

from __future__ import annotations

import torch
from torch import Tensor


def random_triplets(
    labels: Tensor, most: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Anchor, positive and negative of ``most`` triplets, drawn with repeats; every one once where there are no more.

    Args:
        labels: (N,).
        most: how many triplets are drawn.
        generator: on the labels' device.

    Example:
        >>> anchor, positive, negative = random_triplets(torch.tensor([0, 0, 1]), most=10)
        >>> anchor.tolist(), positive.tolist(), negative.tolist()
        ([0, 1], [1, 0], [2, 2])
    """
    num = len(labels)
    _, class_of, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    order = torch.argsort(class_of, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(num, device=labels.device)
    first = (sizes.cumsum(0) - sizes)[class_of]
    own = sizes[class_of]
    others = num - own
    of_anchor = (own - 1) * others
    ends = of_anchor.cumsum(0)
    total = int(ends[-1]) if num else 0
    # Every triplet has a number, from which its three images follow.
    if total <= most:
        number = torch.arange(total, device=labels.device)
    else:
        number = torch.randint(total, (most,), generator=generator, device=labels.device)
    anchor = torch.searchsorted(ends, number, right=True)
    number = number - (ends - of_anchor)[anchor]
    share = others[anchor]
    positive, negative = number // share, number % share
    rank = (place - first)[anchor]
    positive = first[anchor] + positive + (positive >= rank)
    negative = negative + own[anchor] * (negative >= first[anchor])
    return anchor, order[positive], order[negative]
