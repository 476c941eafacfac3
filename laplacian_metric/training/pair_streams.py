"""The batches of an epoch, drawn by labels and a seed alone, and pairs of images that are drawn at random.

Pairs are as many that match as do not, or any two. No image is paired with itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplacian_metric.core.splits import permutation, uniforms
from laplacian_metric.training.options import Sampling, TrainingOptions


def epoch_batches(
    labels: Tensor, options: TrainingOptions, seed: int, epoch: int, process: int = 0, processes: int = 1
) -> list[Tensor]:
    """The positions of the images of every batch of this process.

    Batches are dealt out to the processes in turn; what is left over of a round is left out, so that every process
    takes as many steps. A last batch of a single image, which has no pair, is left out too.

    Example:
        >>> [len(rows) for rows in epoch_batches(torch.zeros(9), TrainingOptions(batch_size=4), seed=0, epoch=0)]
        [4, 4]
    """
    if options.sampling is Sampling.BALANCED:
        order = _balanced(labels, options, seed, epoch)
    elif options.sampling is Sampling.PAIRS:
        order = _pairs(labels, options, seed, epoch)
    else:
        order = torch.from_numpy(permutation((seed, epoch), len(labels)))
    size = options.batch_size * (2 if options.sampling is Sampling.PAIRS else 1)
    batches = [rows for rows in order.split(size) if len(rows) > 1]
    rounds = len(batches) // processes
    if not rounds:
        raise ValueError(
            f"{len(labels)} images make {len(batches)} batches of at most {options.batch_size}, which is none for each "
            f"of {processes} processes: use more images or a smaller batch_size"
        )
    return batches[process : rounds * processes : processes] if processes > 1 else batches


def _pairs(labels: Tensor, options: TrainingOptions, seed: int, epoch: int) -> Tensor:
    """Positions one batch after the other, the images of a pair side by side; half of every batch's pairs match."""
    steps = options.steps_per_epoch or max(1, len(labels) // (2 * options.batch_size))
    drawn = balanced_pairs(labels, steps * options.batch_size, (seed, epoch))
    # Of both halves, those that match and those that do not, every batch gets as many.
    return drawn.view(2, steps, options.batch_size // 2, 2).transpose(0, 1).flatten()


def _balanced(labels: Tensor, options: TrainingOptions, seed: int, epoch: int) -> Tensor:
    """Positions one batch after the other, by the sampler of pytorch-metric-learning."""
    from pytorch_metric_learning.samplers import MPerClassSampler

    classes = len(torch.unique(labels))
    wanted = options.batch_size // options.images_per_class
    if classes < wanted:
        raise ValueError(
            f"a balanced batch of {options.batch_size} images, {options.images_per_class} of a class, needs {wanted} "
            f"classes, and there are {classes}: raise images_per_class or lower batch_size"
        )
    length = max(len(labels), options.batch_size)
    with _numpy_of_the_sampler(seed, epoch):
        sampler = MPerClassSampler(labels.cpu(), options.images_per_class, options.batch_size, length)
        return torch.tensor(list(sampler), dtype=torch.long)


@contextmanager
def _numpy_of_the_sampler(seed: int, epoch: int) -> Iterator[None]:
    """The library draws from numpy's global state; inside it draws from one of ours."""
    from pytorch_metric_learning.utils import common_functions

    before = common_functions.NUMPY_RANDOM
    common_functions.NUMPY_RANDOM = np.random.RandomState([seed % 2**32, epoch])
    try:
        yield
    finally:
        common_functions.NUMPY_RANDOM = before


# Numbers for the separate streams of random numbers.
_MATCHING, _DIFFERING, _RANDOM = range(3)

Whole = npt.NDArray[np.int64]


def balanced_pairs(labels: Tensor, count: int, seed: tuple[int, ...]) -> Tensor:
    """Positions (count, 2): the images of the first half of the pairs match, and those of the others do not.

    Args:
        labels: (N,), of the images that are drawn from.
        count: how many pairs, an even number.
        seed: other seeds give other pairs.

    Example:
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> pairs = balanced_pairs(labels, 4, (0,))
        >>> (labels[pairs[:, 0]] == labels[pairs[:, 1]]).tolist()
        [True, True, False, False]
    """
    if count < 2 or count % 2:
        raise ValueError(f"{count} pairs cannot be balanced: an even number from 2 on is needed")
    return torch.cat([matching_pairs(labels, count // 2, seed), differing_pairs(labels, count // 2, seed)])


def matching_pairs(labels: Tensor, count: int, seed: tuple[int, ...]) -> Tensor:
    """Positions (count, 2) of two images of one class: any image that has a partner, and any of its partners.

    Example:
        >>> sorted(matching_pairs(torch.tensor([0, 1, 1]), 1, (0,))[0].tolist())
        [1, 2]
    """
    groups = _Groups(labels)
    first = np.flatnonzero(groups.size > 1)
    if not first.size:
        raise ValueError("no two images are of one class: pairs that match cannot be drawn")
    draws = uniforms((*seed, _MATCHING), (2, count))
    first = first[_whole(draws[0], first.size)]
    size, rank = groups.size[first], groups.rank[first]
    # From the second after it to the last before it, around the class.
    partner = (rank + 1 + _whole(draws[1], size - 1)) % size
    return _as_pairs(first, groups.order[groups.start[first] + partner])


def differing_pairs(labels: Tensor, count: int, seed: tuple[int, ...]) -> Tensor:
    """Positions (count, 2) of two images of different classes: any image, and any of another class.

    Example:
        >>> pairs = differing_pairs(torch.tensor([0, 1, 1]), 50, (0,))
        >>> bool((pairs == 0).any(1).all())
        True
    """
    groups = _Groups(labels)
    if len(np.unique(groups.start)) < 2:
        raise ValueError("all images are of one class: pairs that do not match cannot be drawn")
    draws = uniforms((*seed, _DIFFERING), (2, count))
    number = len(groups.order)
    first = _whole(draws[0], number)
    size, start = groups.size[first], groups.start[first]
    place = _whole(draws[1], number - size)
    place += size * (place >= start)  # those of its class are passed over
    return _as_pairs(first, groups.order[place])


def random_pairs(number: int, count: int, seed: tuple[int, ...]) -> Tensor:
    """Positions (count, 2) of any two of so many images.

    Example:
        >>> pairs = random_pairs(3, 50, (0,))
        >>> bool((pairs[:, 0] == pairs[:, 1]).any()), int(pairs.max())
        (False, 2)
    """
    if number < 2:
        raise ValueError(f"{number} images make no pair: at least 2 are needed")
    draws = uniforms((*seed, _RANDOM), (2, count))
    first = _whole(draws[0], number)
    return _as_pairs(first, (first + 1 + _whole(draws[1], number - 1)) % number)


class _Groups:
    """The images by class: their order, and for each the size of its class, where that begins, and its place there."""

    def __init__(self, labels: Tensor) -> None:
        if labels.ndim != 1 or not len(labels):
            raise ValueError(
                f"labels has shape {tuple(labels.shape)}, one label for each image is needed, shape (N,)"
            )
        _, class_of, sizes = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
        starts = np.cumsum(sizes) - sizes
        self.order = np.argsort(class_of, kind="stable")
        self.size, self.start = sizes[class_of], starts[class_of]
        self.rank = np.empty_like(self.order)
        self.rank[self.order] = np.arange(len(self.order)) - self.start[self.order]


def _whole(draws: npt.NDArray[np.float64], below: Whole | int) -> Whole:
    """Whole numbers below a bound out of uniform ones below 1."""
    whole: Whole = np.minimum(np.floor(draws * below).astype(np.int64), np.asarray(below) - 1)
    return whole


def _as_pairs(first: Whole, second: Whole) -> Tensor:
    return torch.from_numpy(np.stack([first, second], axis=1).astype(np.int64))
