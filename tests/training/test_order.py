"""Batches: every image once, another order in every epoch, as many for every process, classes in equal parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laplacian_metric.training import TrainingOptions
from laplacian_metric.training.pair_streams import epoch_batches

LABELS = torch.arange(40) % 5


def balanced(
    labels: Tensor = LABELS, size: int = 8, each: int = 2, seed: int = 0, epoch: int = 0, **more: Any
) -> Any:
    options = TrainingOptions(batch_size=size, sampling="balanced", images_per_class=each)  # type: ignore[arg-type]
    return epoch_batches(labels, options, seed, epoch, **more)


@settings(max_examples=40)
@given(st.integers(2, 60), st.integers(2, 20), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_every_image_is_seen_once(count: int, size: int, seed: int, epoch: int) -> None:
    batches = epoch_batches(torch.zeros(count), TrainingOptions(batch_size=size), seed, epoch)
    seen = torch.cat(batches)
    left_out = count % size == 1  # an image that has no other to make a pair with
    assert len(seen) == count - left_out
    assert len(torch.unique(seen)) == len(seen)
    assert all(len(rows) == size for rows in batches[:-1])
    assert 2 <= len(batches[-1]) <= size


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    options = TrainingOptions(batch_size=40)

    def order(seed: int, epoch: int) -> list[int]:
        return epoch_batches(LABELS, options, seed, epoch)[0].tolist()

    torch.manual_seed(0)
    orders = {(seed, epoch): order(seed, epoch) for seed in range(3) for epoch in range(3)}
    torch.manual_seed(1)
    assert all(order(*key) == value for key, value in orders.items())
    assert len({tuple(value) for value in orders.values()}) == 9


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("sampling", ["shuffled", "balanced", "pairs"])
def test_processes_share_the_batches_of_one(count: int, sampling: str) -> None:
    options = TrainingOptions(batch_size=6, sampling=sampling, images_per_class=2)  # type: ignore[arg-type]
    whole = [tuple(rows.tolist()) for rows in epoch_batches(LABELS, options, 3, 1)]
    parts = [
        [tuple(rows.tolist()) for rows in epoch_batches(LABELS, options, 3, 1, process, count)]
        for process in range(count)
    ]
    assert {len(part) for part in parts} == {len(whole) // count}
    # In turn, and none twice.
    dealt = [rows for turn in zip(*parts, strict=True) for rows in turn]
    assert dealt == whole[: len(dealt)]


@pytest.mark.parametrize(("images", "processes"), [(1, 1), (9, 2), (0, 1)])
def test_too_few_images(images: int, processes: int) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        epoch_batches(torch.zeros(images), TrainingOptions(batch_size=8), 0, 0, 0, processes)


@pytest.mark.parametrize(("size", "each"), [(8, 2), (8, 4), (10, 2), (6, 3)])
def test_a_balanced_batch_has_as_many_images_of_each_class(size: int, each: int) -> None:
    batches = balanced(size=size, each=each)
    assert len(batches) == len(LABELS) // size
    for rows in batches:
        classes, counts = torch.unique(LABELS[rows], return_counts=True)
        assert len(classes) == size // each
        assert counts.unique().tolist() == [each]
        assert len(torch.unique(rows)) == size  # no class is too small here


def test_classes_with_too_few_images_repeat_some() -> None:
    labels = torch.tensor([0] * 9 + [1] * 2 + [7])
    for rows in balanced(labels, size=12, each=4):
        counts = torch.bincount(labels[rows], minlength=8)
        assert counts.tolist() == [4, 4, 0, 0, 0, 0, 0, 4]
    assert len(balanced(labels[:3], size=6, each=6)) == 1  # fewer images than a batch has


def test_balanced_batches_depend_on_seed_and_epoch_alone_and_leave_numpy_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    first = torch.stack(balanced(seed=1, epoch=2))
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]  # noqa: NPY002
    np.random.seed(4)  # noqa: NPY002
    assert torch.equal(torch.stack(balanced(seed=1, epoch=2)), first)
    assert not torch.equal(torch.stack(balanced(seed=1, epoch=3)), first)
    assert not torch.equal(torch.stack(balanced(seed=2, epoch=2)), first)


def test_too_few_classes() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        balanced(size=16)
