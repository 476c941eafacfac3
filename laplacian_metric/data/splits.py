"""Splits, what each may be used for, and the deterministic rules that cut validation data out of training data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.splits import STANDARD, Role, Split, parse_split

__all__ = ["STANDARD", "Role", "Split", "TestDataError", "parse_split", "require_selectable"]


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
        laplacian_metric.data.splits.TestDataError: the split 'test' of sample-fashion-mnist must not be used to ...
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
