"""The real data sets, where the environment variable LAPLACIAN_METRIC_DATA says that they are."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from experiments.sets import MissingDataError
from laplacian_metric import data
from laplacian_metric.data import Dataset

SIZES = [
    ("fashion-mnist", {}, (55_000, 5_000, 10_000)),
    ("mnist", {}, (55_000, 5_000, 10_000)),
    ("cifar-10", {}, (45_000, 5_000, 10_000)),
    ("cifar-10", {"zero_shot": True}, (20_000, 5_000, 5_000)),
    ("quickdraw", {}, (13_800, 3_400, 17_300)),
    ("n-digit-mnist", {}, (100_000, 10_000, 10_000)),
    ("folder", {"path": "grocery"}, (675, 57, 661)),
]


def load(name: str, split: str, **options: Any) -> Dataset:
    folder = os.environ.get("LAPLACIAN_METRIC_DATA")
    if not folder:
        pytest.skip("needs real data; say where with LAPLACIAN_METRIC_DATA")
    try:
        return data.load(name, split=split, data_dir=folder, **options)
    except MissingDataError as error:
        pytest.skip(f"not among the real data: {error}")


@pytest.mark.parametrize(("name", "options", "sizes"), SIZES)
def test_sizes_of_the_splits(name: str, options: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    for split, size in zip(("train", "validation", "test"), sizes, strict=True):
        loaded = load(name, split, **options)
        assert len(loaded) == size
        image, label = loaded[size // 2]
        assert image.isfinite().all()
        assert label == int(loaded.labels[size // 2])


def test_people_agree_with_cifar_as_often_as_published() -> None:
    train = load("cifar-10", "train+validation", human_labels=True)
    wrong = (train.extras["human_labels"] != train.labels[:, None]).double().mean(dim=0)
    # CIFAR-10N's authors give 17.23 %, 18.12 % and 17.64 % for the three people, and about 9 % for the majority.
    torch.testing.assert_close(wrong, torch.tensor([0.1723, 0.1812, 0.1764]).double(), atol=1e-4, rtol=0)
    majority = float((train.extras["aggregate_label"] != train.labels).double().mean())
    assert majority == pytest.approx(0.09, abs=1e-3)
    test = load("cifar-10", "test", human_labels=True)
    agreed = (test.extras["human_distribution"].argmax(dim=1) == test.labels).double().mean()
    assert float(agreed) > 0.98
