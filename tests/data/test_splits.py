"""Splits and their roles; that test data cannot select anything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset

from laplacian_metric import data
from laplacian_metric.core.splits import hold_out, part_of_classes, part_of_training
from laplacian_metric.data import Role, Split, TestDataError, require_selectable


def test_roles() -> None:
    assert {split: split.role for split in Split} == {
        Split.TRAIN: Role.FITTING,
        Split.TRAIN_AND_VALIDATION: Role.FITTING,
        Split.VALIDATION: Role.SELECTION,
        Split.TEST: Role.EVALUATION,
        Split.ALL: Role.EVALUATION,
    }


def test_test_data_are_refused_however_they_are_wrapped() -> None:
    test = data.load("sample-fashion-mnist", split="test")
    validation = data.load("sample-fashion-mnist", split="validation")
    wrapped = [
        test,
        test.select([0, 1]),
        test.of_classes([3]).relabelled(),
        Subset(test, [0]),
        DataLoader(test, batch_size=2),
        DataLoader(Subset(test, [0, 1])),
        ConcatDataset([validation, test]),
        data.from_arrays(torch.zeros(1, 4, 4, dtype=torch.uint8), [0], split="all"),
    ]
    for dataset in wrapped:
        with pytest.raises(TestDataError, match="choose a checkpoint"):
            require_selectable(dataset, "choose a checkpoint")


def test_other_data_are_accepted() -> None:
    validation = data.load("sample-fashion-mnist", split="validation")
    train = data.load("sample-fashion-mnist", split="train")
    for dataset in (
        validation,
        train,
        Subset(validation, [0]),
        DataLoader(ConcatDataset([train, validation])),
    ):
        require_selectable(dataset)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 12))
def test_hold_out_takes_the_last_of_every_class(labels: list[int], count: int) -> None:
    array = np.array(labels, dtype=np.int64)
    sizes = np.bincount(array)
    classes = np.flatnonzero(sizes)
    wanted = {
        int(label): count // classes.size + int(rank < count % classes.size)
        for rank, label in enumerate(classes)
    }
    if any(sizes[label] <= number for label, number in wanted.items()):
        with pytest.raises(ValueError, match="held_out"):
            hold_out(array, count)
        return
    held_out = hold_out(array, count)
    assert int(held_out.sum()) == count
    for label, number in wanted.items():
        members = held_out[array == label]
        assert members.sum() == number
        assert members[len(members) - number :].all()
    parts = [part_of_training(array, split, count).tolist() for split in (Split.TRAIN, Split.VALIDATION)]
    assert sorted(parts[0] + parts[1]) == part_of_training(array, Split.TRAIN_AND_VALIDATION, count).tolist()


@given(st.integers(1, 200), st.integers(1, 50), st.floats(0, 0.99))
def test_classes_are_shared_out_once(num_train: int, num_test: int, share: float) -> None:
    train, test = np.arange(num_train), np.arange(num_train, num_train + num_test)
    parts = {split: part_of_classes(train, test, split, share) for split in Split}
    assert parts[Split.TEST].tolist() == test.tolist()
    assert parts[Split.TRAIN_AND_VALIDATION].tolist() == train.tolist()
    assert sorted([*parts[Split.TRAIN], *parts[Split.VALIDATION]]) == train.tolist()
    assert parts[Split.ALL].size == num_train + num_test
    assert abs(parts[Split.VALIDATION].size - share * num_train) <= 1
