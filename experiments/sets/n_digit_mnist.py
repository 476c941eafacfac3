"""N-digit MNIST: N digits of MNIST side by side, some of them partly covered, one class for each number.

As in appendix A of Oh et al. (Modeling Uncertainty with Hedged Instance Embeddings, 2019): 70 % of the numbers are
seen in training; digits of training images come from MNIST's training images and those of test images from its test
images; every class has the same number of images, give or take one. A covered digit has a black square on it whose
side is uniform from 0 to 28 and whose place is uniform among those inside the digit. What is drawn is drawn here
anew, deterministically: the classes and images are not those of the authors' files.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.sets import mnist
from laplacian_metric.core.arguments import at_least, one_of
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import Split, part_of_training, permutation, uniforms
from laplacian_metric.data import DataSetInfo, Request

INFO = DataSetInfo(
    name="n-digit-mnist",
    title="N-digit MNIST (made from MNIST)",
    layout=mnist.INFO.layout,
    page=mnist.INFO.page,
    obtain=mnist.INFO.obtain,
    licence=mnist.INFO.licence,
    citation="Oh, Murphy, Pan, Roth, Schroff, Gallagher: Modeling Uncertainty with Hedged Instance Embeddings, 2019; "
    + mnist.INFO.citation,
)

SEEN_SHARE = 0.7
OCCLUDED_SHARE = {"clean": 0.0, "mixed": 0.2, "corrupt": 1.0}

_SIDE = 28
# Numbers for the separate streams of random numbers.
_CLASSES, _DIGITS, _COVER, _SQUARE = range(4)
_STREAM_OF_SPLIT = {Split.TRAIN: 0, Split.VALIDATION: 1, Split.TRAIN_AND_VALIDATION: 2, Split.TEST: 3}


def read(
    request: Request,
    digits: int = 2,
    classes: str = "seen",
    occlusion: str | None = None,
    num_images: int | None = None,
    seed: int = 0,
    held_out: int = 5000,
) -> Dataset:
    """Return a split.

    `extras["digits"]` (N, digits) are the positions of the digits in MNIST's files, `extras["covered"]`
    (N, digits) the share of each digit that is covered.

    Args:
        digits: how many stand side by side.
        classes: "seen" or "unseen"; the latter for testing only.
        occlusion: "clean" (none covered), "corrupt" (all covered) or "mixed" (each with probability 0.2). The clean
            and the corrupt test set are twins of the same digits. By default "clean" for testing and else "mixed".
        num_images: by default 100,000 for training and 10,000 else.
        seed: other seeds give other classes and images.
        held_out: how many of MNIST's training images give digits for validation only: the last ones of every class.
    """
    one_of(range(1, 7), digits=digits)
    one_of(("seen", "unseen"), classes=classes)
    testing = request.split is Split.TEST
    if classes == "unseen" and not testing:
        raise ValueError(
            f"classes is 'unseen', which is for testing, not for the split {request.split.value!r}"
        )
    if occlusion is None:
        occlusion = "clean" if testing else "mixed"
    one_of(OCCLUDED_SHARE, occlusion=occlusion)
    if num_images is None:
        num_images = 10_000 if testing or request.split is Split.VALIDATION else 100_000
    at_least(1, num_images=num_images)

    published = mnist.published(request)
    images, labels = published.data.numpy(), published.targets.numpy()
    usable = np.arange(labels.size) if testing else part_of_training(labels, request.split, held_out)
    numbers = class_numbers(digits, classes, seed)
    repeated = numbers[np.arange(num_images) % numbers.size]
    stream = (seed, digits, _STREAM_OF_SPLIT[request.split], int(classes == "unseen"))
    chosen = _choose_digits(repeated, digits, labels, usable, stream)
    squares = _squares(num_images, digits, OCCLUDED_SHARE[occlusion], stream)
    return Dataset(
        torch.from_numpy(_compose(images, chosen, squares)),
        repeated,
        class_names=tuple(f"{number:0{digits}d}" for number in range(10**digits)),
        extras={
            "digits": torch.from_numpy(chosen),
            "covered": torch.from_numpy(squares[..., 0] ** 2 / _SIDE**2),
        },
    )


def class_numbers(digits: int, classes: str, seed: int = 0) -> NDArray[np.int64]:
    """Return the seen or the unseen numbers, ascending; the same for all splits.

    Example:
        >>> len(class_numbers(2, "seen")), len(class_numbers(2, "unseen"))
        (70, 30)
    """
    order = permutation((seed, digits, _CLASSES), 10**digits)
    num_seen = round(SEEN_SHARE * 10**digits)
    return np.sort(order[:num_seen] if classes == "seen" else order[num_seen:])


def _choose_digits(
    numbers: NDArray[np.int64],
    digits: int,
    labels: NDArray[np.int64],
    usable: NDArray[np.int64],
    stream: tuple[int, ...],
) -> NDArray[np.int64]:
    """For every place of every number an image of that digit: positions (N, digits) in MNIST's files."""
    places = 10 ** np.arange(digits - 1, -1, -1)
    wanted = numbers[:, None] // places % 10
    draws = uniforms((*stream, _DIGITS), wanted.shape)
    chosen = np.zeros(wanted.shape, dtype=np.int64)
    for digit in range(10):
        members = usable[labels[usable] == digit]
        here = wanted == digit
        if here.any() and not members.size:
            raise ValueError(f"MNIST's files have no usable image of the digit {digit}")
        chosen[here] = members[np.floor(draws[here] * members.size).astype(np.int64)]
    return chosen


def _squares(count: int, digits: int, share: float, stream: tuple[int, ...]) -> NDArray[np.int64]:
    """Side, top and left (N, digits, 3) of the square on every digit; side 0 where there is none.

    Every digit has its square whether it is covered or not, so that other shares cover with the same squares.
    """
    draws = uniforms((*stream, _SQUARE), (count, digits, 3))
    side = np.floor(draws[..., 0] * (_SIDE + 1)).astype(np.int64)
    corner = np.floor(draws[..., 1:] * (_SIDE - side[..., None] + 1)).astype(np.int64)
    side[uniforms((*stream, _COVER), (count, digits)) >= share] = 0
    return np.concatenate([side[..., None], corner], axis=-1)


def _compose(
    images: NDArray[np.uint8], chosen: NDArray[np.int64], squares: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Images (N, 1, 28, 28 digits) out of the digits at the chosen positions, under their squares."""
    count, digits = chosen.shape
    composed = np.empty((count, 1, _SIDE, _SIDE * digits), dtype=np.uint8)
    ticks = np.arange(_SIDE)
    for place in range(digits):
        side, top, left = (squares[:, place, part, None] for part in range(3))
        rows = (ticks >= top) & (ticks < top + side)
        columns = (ticks >= left) & (ticks < left + side)
        tile = images[chosen[:, place]]
        tile[rows[:, :, None] & columns[:, None, :]] = 0
        composed[:, 0, :, place * _SIDE : (place + 1) * _SIDE] = tile
    return composed
