"""Batches in which every class has about its share, so that what they sum up to stands for the data set."""

from __future__ import annotations

import torch
from torch import Tensor

from laplacian_metric.laplace.options import BATCH_SIZE

FEWEST_PER_CLASS = 4


def class_balanced_batches(
    labels: Tensor, batch_size: int = BATCH_SIZE, *, generator: torch.Generator | None = None
) -> list[Tensor]:
    """A random partition of the images into batches, each image once.

    Every class is cut into random groups of about equal size (so many images that a batch would hold every class
    once, but about four at least), and the groups are dealt out so that those of one class lie far apart: a batch has
    positives even where there are more classes than it could hold. Where every class is two to four images, as with two
    views of each image, no class is parted.

    Args:
        labels: (N,).
        batch_size: how many images a batch has at most; all have about as many.
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
    generator = on_host(generator)
    shuffled = torch.randperm(num, generator=generator)
    order = shuffled[torch.argsort(class_of[shuffled], stable=True)]
    sorted_class = class_of[order]
    rank = torch.arange(num) - (sizes.cumsum(0) - sizes)[sorted_class]
    groups = (sizes + per_class - 1) // per_class
    group = rank * groups[sorted_class] // sizes[sorted_class]
    offset = torch.rand(len(sizes), generator=generator, dtype=torch.float64)
    place = (group + offset[sorted_class]) / groups[sorted_class]
    dealt = order[torch.argsort(place, stable=True)]
    views = int(sizes[0])
    if (
        not 2 <= views <= min(FEWEST_PER_CLASS, batch_size)
        or int(sizes.max()) > views
        or int(sizes.min()) < views
    ):
        views = 1
    # Views of an image lie together: they are kept in one batch.
    images, most = dealt.view(-1, views), batch_size // views
    return [part.flatten().to(device) for part in images.tensor_split(-(-len(images) // most))]


def on_host(generator: torch.Generator | None) -> torch.Generator | None:
    """A generator for tensors on the host that draws its seed from one on another device."""
    if generator is None or generator.device.type == "cpu":
        return generator
    seed = torch.randint(2**62, (1,), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))
