"""What several data sets have in common: how they are divided, image files, mosaics, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.images import ImageFiles
from laplacian_metric.core.splits import Split, part_of_classes, part_of_training


def array_data(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    split: Split,
    class_names: tuple[str, ...],
    held_out: int,
    extras: Mapping[str, torch.Tensor] | None = None,
) -> Dataset:
    """Return one split out of a published training set, or all of a published test set.

    Args:
        images: (N, C, H, W).
        labels: (N,).
        split: which part.
        class_names: of every label.
        held_out: how many training images are for validation: the last ones of every class.
        extras: aligned with the images.
    """
    rows = np.arange(len(labels)) if split is Split.TEST else part_of_training(labels, split, held_out)
    return Dataset(
        torch.from_numpy(np.ascontiguousarray(images[rows])),
        labels[rows],
        class_names=class_names,
        indices=torch.from_numpy(rows),
        extras={name: values[torch.from_numpy(rows)] for name, values in (extras or {}).items()},
    )


def rows_of_halves(
    place: Path, labels: NDArray[np.int64], num_classes: int, split: Split, validation_share: float
) -> NDArray[np.int64]:
    """Return the rows of a zero-shot split: the first half of the classes is for training, the second for testing.

    Args:
        place: where the labels come from, for the error if one of them has no class.
        labels: (N,), from 0.
        num_classes: all of them.
        split: which part.
        validation_share: how many of the training classes are for validation, at even steps.
    """
    if not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"{place} has labels from {labels.min()} to {labels.max()}, counted from 0, but names {num_classes} classes"
        )
    half = num_classes // 2
    chosen = part_of_classes(np.arange(half), np.arange(half, num_classes), split, validation_share)
    return np.flatnonzero(np.isin(labels, chosen))


def file_data(
    root: Path,
    names: Sequence[str],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    rows: NDArray[np.int64],
    extras: Mapping[str, torch.Tensor] | None = None,
) -> Dataset:
    """Return the image files at the given rows of all those that a data set lists."""
    return Dataset(
        ImageFiles(root, tuple(names[row] for row in rows.tolist())),
        labels[rows],
        class_names=tuple(class_names),
        indices=torch.from_numpy(rows),
        extras={name: values[torch.from_numpy(rows)] for name, values in (extras or {}).items()},
    )


def read_table(path: Path, columns: Sequence[str], **options: Any) -> pd.DataFrame:
    """Return a table with the given columns; a damaged one is refused by the file's name."""
    try:
        table = pd.read_csv(path, **options)
        table.columns = table.columns.astype(str)
        return table[list(columns)]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged or another file ({error}): get it again") from error


def mosaic(path: Path, side: int, mode: str = "RGB") -> NDArray[np.uint8]:
    """Return the images (N, C, side, side) of a mosaic, row by row."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert(mode))
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    tiles = pixels.reshape(rows, side, columns, side, -1).transpose(0, 2, 4, 1, 3)
    images: NDArray[np.uint8] = tiles.reshape(rows * columns, -1, side, side)
    return images
