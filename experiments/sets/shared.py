"""What several data sets have in common: IDX files, splits by class, archives that are fetched and unpacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from laplacian_metric.data.images import ImageFiles
from experiments.sets.readers import CorruptFileError, read_idx
from laplacian_metric.data.source import Content, Request
from laplacian_metric.data.splits import Split, part_of_classes, part_of_training

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

Arrays = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def find_idx(request: Request, bases: Sequence[str], mirror: str, checksums: Mapping[str, str]) -> Path:
    """The folder with the four IDX files of MNIST or of a set made like it.

    Args:
        bases: where it may lie; downloads go to the first.
        mirror: the address that the names of the gzipped files are appended to.
        checksums: MD5 by name of the gzipped file.
    """

    def get(folder: Path) -> None:
        for name in IDX_FILES:
            zipped = f"{name}.gz"
            request.fetch(f"{mirror}{zipped}", folder / bases[0] / zipped, checksums[zipped])

    return request.find(bases, [(name, f"{name}.gz") for name in IDX_FILES], get)


def read_idx_pair(folder: Path, prefix: str) -> Arrays:
    """Images (N, H, W) and labels (N,) of the training ("train") or test ("t10k") files."""
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte")
    if images.ndim != 3 or labels.ndim != 1:
        raise CorruptFileError(
            f"{folder}: {prefix} images have the shape {images.shape} and labels {labels.shape}; three dimensions "
            "and one are expected"
        )
    if images.shape[0] != labels.shape[0]:
        raise CorruptFileError(
            f"{folder} has {images.shape[0]} {prefix} images but {labels.shape[0]} labels; get both again"
        )
    return images, labels.astype(np.int64)


def idx_content(folder: Path, split: Split, class_names: tuple[str, ...], held_out: int) -> Content:
    """One split of a data set in IDX files."""
    images, labels = read_idx_pair(folder, "t10k" if split is Split.TEST else "train")
    return array_content(images[:, None], labels, split, class_names, held_out)


def array_content(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    split: Split,
    class_names: tuple[str, ...],
    held_out: int,
    extras: Mapping[str, torch.Tensor] | None = None,
) -> Content:
    """One split out of the published training set, or all of the published test set.

    Args:
        images: (N, C, H, W).
        extras: aligned with the images.
    """
    if split is Split.TEST:
        part = np.arange(labels.shape[0], dtype=np.int64)
    else:
        part = part_of_training(labels, split, held_out)
    rows = torch.from_numpy(part)
    return Content(
        images=torch.from_numpy(np.ascontiguousarray(images[part])),
        labels=labels[part],
        class_names=class_names,
        indices=part,
        extras={name: values[rows] for name, values in (extras or {}).items()},
    )


def rows_of_first_and_second_half(
    place: Path, labels: npt.NDArray[np.int64], num_classes: int, split: Split, validation_share: float
) -> npt.NDArray[np.int64]:
    """Positions of the images of a zero-shot split, where the first half of the classes is for training.

    Args:
        place: where the labels come from, for the message if one of them has no class.
    """
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise CorruptFileError(
            f"{place} has labels from {labels.min()} to {labels.max()}, counted from 0, but names {num_classes} classes"
        )
    half = num_classes // 2
    chosen = part_of_classes(np.arange(half), np.arange(half, num_classes), split, validation_share)
    return np.flatnonzero(np.isin(labels, chosen)).astype(np.int64)


def file_content(
    root: Path,
    names: Sequence[str],
    labels: npt.NDArray[np.int64],
    class_names: tuple[str, ...],
    part: npt.NDArray[np.int64],
    extras: Mapping[str, torch.Tensor] | None = None,
) -> Content:
    """The image files at the positions `part` of all those that a data set lists."""
    rows = torch.from_numpy(part)
    return Content(
        images=ImageFiles(root, tuple(names[row] for row in part.tolist())),
        labels=labels[part],
        class_names=class_names,
        indices=part,
        extras={name: values[rows] for name, values in (extras or {}).items()},
    )


def read_table(path: Path, columns: int) -> list[list[str]]:
    """The lines of a text file of columns with blanks between them; the last column may hold blanks."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split(None, columns - 1)
        if not fields:
            continue
        if len(fields) != columns:
            raise CorruptFileError(
                f"{path}, line {number} has {len(fields)} columns instead of {columns}: {line!r}"
            )
        rows.append(fields)
    return rows


def as_number(text: str, path: Path) -> int:
    """A whole number out of a file; the file is named where it is none."""
    try:
        return int(text)
    except ValueError:
        raise CorruptFileError(f"{path} has {text!r} where a number should be") from None
