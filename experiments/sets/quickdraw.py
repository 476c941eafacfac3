"""Quick, Draw!: sketches of 345 kinds of things, 28 x 28; a hundred of each, split by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from experiments.sets.readers import CorruptFileError, read_npy, read_npz
from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.shared import rows_of_first_and_second_half
from laplacian_metric.data.splits import STANDARD, Split

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

_SIDE = 28


def read(request: Request, validation_share: float = 0.2, per_class: int = 100) -> Content:
    """Read a split. The first half of the classes, in the order of their names, is for training.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
        per_class: how many sketches to take of every published bitmap file; an .npz is taken whole.
    """
    folder = request.find(("quickdraw", "."), [("quickdraw.npz", "numpy_bitmap")])
    path = folder / "quickdraw.npz"
    if path.is_file():
        images, labels, names = _read_sample(path)
    else:
        images, labels, names = _read_bitmaps(folder / "numpy_bitmap", per_class)
    part = rows_of_first_and_second_half(folder, labels, len(names), request.split, validation_share)
    return Content(torch.from_numpy(images[part][:, None]), labels[part], names, part)


def _read_sample(
    path: Path,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], tuple[str, ...]]:
    arrays = read_npz(path, ("x", "y", "classes"))
    images, labels = arrays["x"], arrays["y"].astype(np.int64)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise CorruptFileError(f"{path}: x must be uint8 (N, 28, 28), not {images.dtype} {images.shape}")
    if labels.shape != images.shape[:1]:
        raise CorruptFileError(f"{path} has {images.shape[0]} images but {labels.shape[0]} labels")
    return images, labels, tuple(str(name) for name in arrays["classes"])


def _read_bitmaps(
    folder: Path, per_class: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], tuple[str, ...]]:
    if per_class < 1:
        raise ValueError(f"per_class is {per_class}; it must be 1 or more")
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise CorruptFileError(f"{folder} has no .npy files")
    images = []
    for file in files:
        # Mapped: a published file has a hundred megabytes, of which a hundredth is looked at.
        rows = read_npy(file, mapped=True)
        if rows.ndim != 2 or rows.shape[1] != _SIDE**2 or rows.dtype != np.uint8:
            raise CorruptFileError(f"{file} must be uint8 (N, 784), not {rows.dtype} {rows.shape}")
        if rows.shape[0] < per_class:
            raise CorruptFileError(f"{file} has {rows.shape[0]} sketches, {per_class} are asked for")
        images.append(np.array(rows[:per_class]).reshape(-1, _SIDE, _SIDE))
    labels = np.repeat(np.arange(len(files), dtype=np.int64), per_class)
    return np.concatenate(images), labels, tuple(file.stem for file in files)
