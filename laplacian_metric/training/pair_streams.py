"""Pairs of images that are drawn at random: as many that match as do not, or any two.

What is drawn depends on the labels and a seed alone. No image is paired with itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laplacian_metric.data.randomness import uniforms

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
