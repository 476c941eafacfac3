"""The splits of a data set and what each may be used for."""

from __future__ import annotations

from enum import Enum


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
