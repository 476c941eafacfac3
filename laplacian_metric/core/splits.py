"""Splits, what each may be used for, the deterministic rules that cut validation data out of training data, and random
numbers that depend on a seed only.

numpy promises that the raw output of its bit generators stays the same from release to release, and does not promise it
for shuffles and distributions. What data sets are made of is therefore drawn from raw output.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray


class Role(str, Enum):
    """What the images of a split may be used for."""

    FITTING = "fitting"
    SELECTION = "selection"
    EVALUATION = "evaluation"


class Split(str, Enum):
    """A part of a data set.

    TRAIN_AND_VALIDATION is the training set as it was published, before anything is held out of it. ALL is every
    image; it contains test images and counts as test data.
    """

    TRAIN = "train"
    VALIDATION = "validation"
    TRAIN_AND_VALIDATION = "train+validation"
    TEST = "test"
    ALL = "all"

    @property
    def role(self) -> Role:
        if self is Split.VALIDATION:
            return Role.SELECTION
        if self in (Split.TRAIN, Split.TRAIN_AND_VALIDATION):
            return Role.FITTING
        return Role.EVALUATION


STANDARD = (Split.TRAIN, Split.VALIDATION, Split.TRAIN_AND_VALIDATION, Split.TEST)


def parse_split(split: str | Split, available: tuple[Split, ...] = tuple(Split), name: str = "") -> Split:
    """Return the split that a word stands for, checked against those that a data set has.

    Example:
        >>> parse_split("val")
        <Split.VALIDATION: 'validation'>
    """
    word = split.value if isinstance(split, Split) else split
    word = {"val": "validation", "trainval": "train+validation"}.get(word, word)
    match = next((member for member in available if member.value == word), None)
    if match is None:
        owner = f"the data set {name}" if name else "a data set"
        raise ValueError(
            f"{owner} has no split {word!r}; it has: {', '.join(member.value for member in available)}"
        )
    return match


class TestDataError(ValueError):
    """Test data were about to decide which model, checkpoint or setting is kept."""

    __test__ = False  # the name starts with Test, and pytest would take it for a class of tests


def require_selectable(dataset: object, purpose: str = "select a model") -> None:
    """Refuse test data wherever data decide what is kept.

    Data loaders, subsets and concatenations are looked through, so that wrapping test data does not hide them.

    Args:
        dataset: anything with a `split`, or something that wraps such data.
        purpose: what the data are wanted for; it goes into the message.

    Raises:
        TestDataError: the data are test data, or contain them.
        TypeError: nothing says which split the data are.

    Example:
        >>> from laplacian_metric.data import load
        >>> require_selectable(load("sample-fashion-mnist", split="validation"))
        >>> require_selectable(load("sample-fashion-mnist", split="test"))
        Traceback (most recent call last):
        ...
        laplacian_metric.core.splits.TestDataError: the split 'test' of sample-fashion-mnist must not be used to ...
    """
    split = getattr(dataset, "split", None)
    if isinstance(split, str):  # tensors and others have a method of that name
        parsed = parse_split(split)
        if parsed.role is Role.EVALUATION:
            name = getattr(dataset, "name", "this data set")
            raise TestDataError(
                f"the split {parsed.value!r} of {name} must not be used to {purpose}; take its split 'validation'"
            )
        return
    wrapped = getattr(dataset, "dataset", None)
    parts = getattr(dataset, "datasets", None) if wrapped is None else [wrapped]
    if not parts:
        raise TypeError(
            f"{type(dataset).__name__} does not say which split it is, so it cannot be used to {purpose}; "
            "wrap the images with laplacian_metric.data.from_arrays(images, labels, split='validation')"
        )
    for part in parts:
        require_selectable(part, purpose)


def hold_out(labels: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Which images are held out for validation: the last ones of every class, as many of each class.

    Where `count` is no multiple of the number of classes, the first classes give one image more. There is nothing
    random in it.

    Args:
        labels: (N,), in the order of the published files.
        count: how many images to hold out.

    Returns:
        (N,), True for an image that is held out.

    Example:
        >>> hold_out(np.array([0, 1, 0, 1, 0, 1]), 2).tolist()
        [False, False, False, False, True, True]
    """
    if count < 0:
        raise ValueError(f"held_out is {count}; it must be 0 or more")
    held_out = np.zeros(labels.shape[0], dtype=np.bool_)
    classes = np.unique(labels)
    for rank, label in enumerate(classes):
        wanted = count // classes.size + (1 if rank < count % classes.size else 0)
        members = np.flatnonzero(labels == label)
        if members.size <= wanted:
            raise ValueError(
                f"class {label} has {members.size} training images, so that {wanted} of them cannot be held out "
                f"for validation; pass a held_out smaller than {count}"
            )
        held_out[members[members.size - wanted :]] = True
    return held_out


def part_of_training(labels: NDArray[np.int64], split: Split, held_out: int) -> NDArray[np.int64]:
    """Positions in a published training set that make up one of its splits (see `hold_out`)."""
    if split is Split.TRAIN_AND_VALIDATION:
        return np.arange(labels.shape[0], dtype=np.int64)
    mask = hold_out(labels, held_out)
    return np.flatnonzero(mask if split is Split.VALIDATION else ~mask).astype(np.int64)


def part_of_classes(
    train: NDArray[np.int64], test: NDArray[np.int64], split: Split, validation_share: float
) -> NDArray[np.int64]:
    """The classes of one split of a zero-shot data set.

    Validation classes are taken out of the training classes at even steps: with a share of 0.2 the fifth, the tenth
    and so on. Taking the last ones instead would hold out whole families where classes are sorted by kind.

    Args:
        train, test: the classes as they were published; without a class in common.
        validation_share: how many of the training classes are for validation, in [0, 1).

    Example:
        >>> part_of_classes(np.arange(5), np.arange(5, 9), Split.VALIDATION, 0.4).tolist()
        [2, 4]
    """
    if not 0 <= validation_share < 1:
        raise ValueError(f"validation_share is {validation_share}; it must be at least 0 and below 1")
    if split is Split.TEST:
        return test
    if split is Split.ALL:
        return np.concatenate([train, test])
    if split is Split.TRAIN_AND_VALIDATION:
        return train
    steps = np.floor(np.arange(train.size + 1) * validation_share + 1e-9)
    mask = np.diff(steps) > 0
    chosen: NDArray[np.int64] = train[mask if split is Split.VALIDATION else ~mask]
    return chosen


def uniforms(seed: tuple[int, ...], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that are uniform and independent; another seed gives unrelated ones.

    Zeros at the end of a seed do not make it another: (1,) and (1, 0) are the same.

    Example:
        >>> bool((uniforms((1, 2), (3,)) == uniforms((1, 2), (3,))).all())
        True
    """
    raw = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(int(np.prod(shape)))
    # The upper 53 bits are what a double holds.
    numbers: npt.NDArray[np.float64] = (raw >> np.uint64(11)) * 2.0**-53
    return numbers.reshape(shape)


def permutation(seed: tuple[int, ...], count: int) -> npt.NDArray[np.int64]:
    """The numbers below `count` in random order."""
    return np.argsort(uniforms(seed, (count,)), kind="stable").astype(np.int64)
