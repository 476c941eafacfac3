"""Quick, Draw!: sketches of 345 kinds of things, 28 x 28; a hundred of each, split by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.sets.lookup import find
from experiments.sets.shared import rows_of_halves
from laplacian_metric.core.arguments import at_least
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import STANDARD, Split
from laplacian_metric.data import DataSetInfo, Request

INFO = DataSetInfo(
    name="quickdraw",
    title="Quick, Draw!",
    layout="quickdraw/quickdraw.npz (arrays x, y, classes) or quickdraw/numpy_bitmap/*.npy (the published bitmaps)",
    page="https://github.com/googlecreativelab/quickdraw-dataset",
    obtain="gsutil -m cp 'gs://quickdraw_dataset/full/numpy_bitmap/*.npy' quickdraw/numpy_bitmap/",
    licence="CC BY 4.0, Google",
    citation="Jongejan, Rowley, Kawashima, Kim, Fox-Gieg: The Quick, Draw! A.I. Experiment, 2016",
    splits=(*STANDARD, Split.ALL),
)

SIDE = 28


def read(request: Request, validation_share: float = 0.2, per_class: int = 100) -> Dataset:
    """Return a split. The first half of the classes, in the order of their names, is for training.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
        per_class: how many sketches to take of every published bitmap file; an .npz is taken whole.
    """
    folder = find(request, ("quickdraw", "quickdraw/numpy_bitmap", "numpy_bitmap", "."), ["*.np[yz]"])
    path = folder / "quickdraw.npz"
    if path.is_file():
        with np.load(path) as stored:
            images, labels = stored["x"], stored["y"].astype(np.int64)
            names = tuple(str(name) for name in stored["classes"])
    else:
        images, labels, names = _read_bitmaps(folder, per_class)
    rows = rows_of_halves(folder, labels, len(names), request.split, validation_share)
    return Dataset(
        torch.from_numpy(images[rows][:, None]),
        labels[rows],
        class_names=names,
        indices=torch.from_numpy(rows),
    )


def _read_bitmaps(
    folder: Path, per_class: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]:
    at_least(1, per_class=per_class)
    files = sorted(folder.glob("*.npy"))
    images = []
    for file in files:
        # Mapped: a published file has a hundred megabytes, of which a hundredth is read.
        rows = np.load(file, mmap_mode="r")
        if len(rows) < per_class:
            raise ValueError(f"{file} has {len(rows)} sketches, per_class is {per_class}")
        images.append(np.array(rows[:per_class]).reshape(-1, SIDE, SIDE))
    labels = np.repeat(np.arange(len(files)), per_class)
    return np.concatenate(images), labels, tuple(file.stem for file in files)
