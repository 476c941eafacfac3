"""What data sets, splits and views refuse: the error names the argument."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, TensorDataset

from laplacian_metric import data
from laplacian_metric.core.splits import Split, hold_out, part_of_classes
from laplacian_metric.data import Dataset, require_selectable
from laplacian_metric.data.views import ImageViews, views_of

ROWS, ZEROS = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
PIXELS, HALF = torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.full((2, 3, 8, 8), 0.5)
CLASSES = [0, 1, 2, 0, 1, 2]

dataset = partial(Dataset, inputs=ROWS)
arrays = partial(data.from_arrays, PIXELS, split="train")
sample = partial(data.load, "sample-fashion-mnist", split="train")
small = Dataset(ROWS, ZEROS)


@pytest.mark.parametrize(
    ("use", "error", "named"),
    [
        (lambda: Dataset(TensorDataset(ROWS), ZEROS), TypeError, "inputs"),
        (lambda: Dataset(arrays(labels=CLASSES)), TypeError, "inputs"),
        (lambda: Dataset(ROWS[:3], ZEROS), ValueError, "labels"),
        (lambda: dataset(item_ids=["a"]), ValueError, "ids"),
        (lambda: dataset(labels=ZEROS.float()), TypeError, "labels"),
        (lambda: dataset(labels=ZEROS[:, None]), ValueError, "labels"),
        (lambda: dataset(labels=["ant", "cat"] * 2, class_names=("ant",)), ValueError, "'cat'"),
        (lambda: dataset(labels=[1, "1", 1, "1"]), ValueError, "labels"),
        (lambda: dataset(labels=ZEROS + 2, class_names=("ant",)), ValueError, "class names"),
        (lambda: dataset(batch_size=0), ValueError, "batch_size"),
        (lambda: dataset(workers=-1), ValueError, "workers"),
        (lambda: dataset(split="tset"), ValueError, "'tset'"),
        (lambda: dataset().known_labels(), ValueError, "labels"),
        (lambda: small.select(torch.ones(3).bool()), ValueError, "rows"),
        (lambda: arrays(labels=CLASSES, class_names="abc").of_classes(["ten"]), ValueError, "'ten'"),
        (lambda: arrays(labels=CLASSES).of_classes([10]), ValueError, "10"),
        (lambda: arrays(labels=CLASSES)[1000], IndexError, "1000"),
        (lambda: arrays(labels=CLASSES[:5]), ValueError, "labels"),
        (lambda: arrays(labels=torch.zeros(6)), TypeError, "labels"),
        (lambda: arrays(labels=CLASSES, class_names=["a", "b"]), ValueError, "class names"),
        (lambda: data.from_arrays(PIXELS / 255, CLASSES, split="train"), ValueError, "images"),
        (lambda: data.from_arrays(PIXELS.permute(0, 2, 3, 1), CLASSES, split="train"), ValueError, "permute"),
        (lambda: data.from_arrays(PIXELS, CLASSES, split="training"), ValueError, "training"),
        (lambda: arrays(augment=lambda image: image / 255)[0], ValueError, "augment"),
        (
            lambda: data.from_arrays(PIXELS[:, :1], split="train", preprocessing="imagenet").floats(),
            ValueError,
            "channels",
        ),
        (lambda: data.load("Sample_MNIST"), ValueError, "'sample-mnist'"),
        (lambda: data.load("imagenet"), ValueError, r"experiments\.sets"),
        (lambda: data.load("sample-mnist", "train"), ValueError, "'train'"),
        (lambda: sample(hold_out=3), ValueError, "'held_out'"),
        (lambda: sample(held_out=-1), ValueError, "held_out"),
        (lambda: sample(image_size=0), ValueError, "image_size"),
        (lambda: sample(channels=2), ValueError, "channels"),
        (lambda: sample(preprocessing="zero-one"), ValueError, "preprocessing"),
        (lambda: data.load("folder"), ValueError, "'path'"),
        (lambda: require_selectable(torch.zeros(3)), TypeError, "split"),
        (lambda: require_selectable([1, 2]), TypeError, "split"),
        (lambda: require_selectable(TensorDataset(torch.zeros(3))), TypeError, "split"),
        (lambda: require_selectable(ConcatDataset.__new__(ConcatDataset)), TypeError, "split"),
        (lambda: part_of_classes(np.arange(3), np.arange(3), Split.TRAIN, 1), ValueError, "validation_share"),
        (lambda: hold_out(np.zeros(3, dtype=np.int64), -1), ValueError, "held_out"),
        (lambda: ImageViews(flip=1.5), ValueError, "flip"),
        (lambda: ImageViews(hue=0.6), ValueError, "hue"),
        (lambda: ImageViews(area=(0.0, 1.0)), ValueError, "area"),
        (lambda: ImageViews(area=(0.5, 1.5)), ValueError, "area"),
        (lambda: ImageViews(ratio=(2.0, 1.0)), ValueError, "ratio"),
        (lambda: ImageViews(grey=-0.1), ValueError, "grey"),
        (lambda: views_of(HALF * torch.nan), ValueError, "images"),
        (lambda: views_of(torch.tensor([0.0, 255.0]).expand(2, 3, 4, 2)), ValueError, "255"),
        (lambda: views_of(torch.zeros(2, 5)), ValueError, "images"),
        (lambda: views_of(HALF.to(torch.uint8)), ValueError, "uint8"),
        (lambda: views_of((HALF, HALF)), ValueError, "tuple"),
        (lambda: views_of(HALF, augmentation=lambda x, g: x[:1]), ValueError, "augmentation"),
        (
            lambda: views_of(HALF, augmentation=lambda x, g: x[:, :, : int(torch.randint(2, 8, ()))]),
            ValueError,
            "augmentation",
        ),
        (lambda: views_of(HALF, count=1), ValueError, "count"),
    ],
)
def test_bad_input_is_named(use: Any, error: type[Exception], named: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(error, match=named):
        use()
