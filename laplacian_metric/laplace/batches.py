"""Batches in which every class has about its share, so that what they sum up to stands for the data set."""

from __future__ import annotations

import torch
from torch import Tensor

from hessians import Pairs

BATCH_SIZE = 256
FEWEST_PER_CLASS = 4


def class_balanced_batches(
    labels: Tensor, batch_size: int = BATCH_SIZE, *, generator: torch.Generator | None = None
) -> list[Tensor]:
    """A random partition of the images into batches, each image once.

    Every class is cut into random groups of a few images (so many that a batch would hold every class once, four
    at least, all the rest of a small class), and the groups are dealt out so that those of one class lie far
    apart: a batch has positives even where there are more classes than it could hold.

    Args:
        labels: (N,).
        batch_size: about how many images a batch has.
        generator: of the random partition.

    Returns:
        Positions of the images of each batch, on the labels' device.

    Example:
        >>> batches = class_balanced_batches(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1] * 2), batch_size=8)
        >>> [len(batch) for batch in batches]
        [8, 8]
    """
    if batch_size < 2:
        raise ValueError(f"batch_size is {batch_size}, at least 2 are needed: a pair has two images")
    labels = torch.as_tensor(labels).detach()
    num, device = len(labels), labels.device
    if num == 0:
        return []
    host = labels.cpu()
    _, class_of, sizes = torch.unique(host, return_inverse=True, return_counts=True)
    per_class = max(FEWEST_PER_CLASS, batch_size // len(sizes))
    # A generator on another device could not serve tensors on the host.
    host_generator = generator if generator is None or generator.device.type == "cpu" else None
    shuffled = torch.randperm(num, generator=host_generator)
    order = shuffled[torch.argsort(class_of[shuffled], stable=True)]
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    rank = torch.arange(num) - starts
    sorted_class = class_of[order]
    group = rank // per_class
    groups_of_class = (sizes + per_class - 1) // per_class
    offset = torch.rand(len(sizes), generator=host_generator)
    place = (group + offset[sorted_class]) / groups_of_class[sorted_class]
    dealt = order[torch.argsort(place, stable=True)]
    count = max(1, round(num / batch_size))
    return [part.to(device) for part in dealt.tensor_split(count)]


def pair_counts(labels: Tensor, batches: list[Tensor] | None = None) -> tuple[int, int]:
    """Positive and negative pairs inside the batches (one batch of all images by default), summed.

    Example:
        >>> pair_counts(torch.tensor([0, 0, 1, 1]), [torch.tensor([0, 1]), torch.tensor([2, 3])])
        (2, 0)
    """
    parts = [labels] if batches is None else [labels[batch] for batch in batches]
    counted = [Pairs.from_labels(part) for part in parts]
    return int(sum(pairs.num_positives for pairs in counted)), int(
        sum(pairs.num_negatives for pairs in counted)
    )
