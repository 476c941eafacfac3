"""Stanford Online Products: photographs of 22,634 things that were sold online, split by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from experiments.sets.readers import CorruptFileError
from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.shared import as_number, file_content, read_table
from laplacian_metric.data.splits import STANDARD, Split, part_of_classes

INFO = DataSetInfo(
    name="stanford-online-products",
    title="Stanford Online Products",
    layout="Stanford_Online_Products/{Ebay_train.txt,Ebay_test.txt,*_final/}",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
    obtain="unpack Stanford_Online_Products.zip",
    licence="for non-commercial research only",
    citation="Oh Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding, 2016",
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)

URL = "ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip"  # no checksum is published
_FOLDER = "Stanford_Online_Products"
_HEADER = ["image_id", "class_id", "super_class_id", "path"]


def read(request: Request, validation_share: float = 0.2) -> Content:
    """Read a split. Training and test classes are those of Ebay_train.txt and Ebay_test.txt.

    `extras["super_class"]` (N,) is the kind of thing, counted from 0.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
    """
    folder = request.find(
        (_FOLDER, "."),
        [("Ebay_train.txt",), ("Ebay_test.txt",)],
        lambda target: request.fetch_and_unpack(URL, target, _FOLDER),
    )
    rows: list[tuple[str, int, int]] = []
    train: set[int] = set()
    test: set[int] = set()
    for name, classes in (("Ebay_train.txt", train), ("Ebay_test.txt", test)):
        table = _rows(folder / name)
        classes.update(label for _, label, _ in table)
        rows += table
    if train & test:
        raise CorruptFileError(f"{folder}: class {min(train & test) + 1} is for training and for testing")
    labels = np.array([label for _, label, _ in rows], dtype=np.int64)
    chosen = part_of_classes(
        np.array(sorted(train), dtype=np.int64),
        np.array(sorted(test), dtype=np.int64),
        request.split,
        validation_share,
    )
    part = np.flatnonzero(np.isin(labels, chosen)).astype(np.int64)
    names = tuple(f"product {number + 1}" for number in range(int(labels.max()) + 1))
    kinds = torch.tensor([kind for _, _, kind in rows], dtype=torch.int64)
    return file_content(folder, [path for path, _, _ in rows], labels, names, part, {"super_class": kinds})


def _rows(path: Path) -> list[tuple[str, int, int]]:
    """Path, class and kind of every image, the latter two counted from 0."""
    lines = read_table(path, 4)
    if not lines or lines[0] != _HEADER:
        raise CorruptFileError(f"{path} must begin with the line {' '.join(_HEADER)!r}")
    return [
        (name, as_number(label, path) - 1, as_number(kind, path) - 1) for _, label, kind, name in lines[1:]
    ]
