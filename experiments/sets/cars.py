"""Cars-196 (Stanford Cars): photographs of 196 models of cars, split by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.sets.lookup import first_existing, locate
from experiments.sets.readers import CorruptFileError, read_mat
from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.shared import file_content, rows_of_first_and_second_half
from laplacian_metric.data.splits import STANDARD, Split

INFO = DataSetInfo(
    name="cars-196",
    title="Cars-196",
    layout="cars196/{cars_annos.mat,car_ims/}, or stanford_cars/{cars_train/,cars_test/,devkit/,"
    "cars_test_annos_withlabels.mat} as torchvision has it",
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    obtain="its publisher's files are no longer served; torchvision's layout comes with kaggle datasets download -d "
    "rickyyyyyyy/torchvision-stanford-cars",
    licence="for non-commercial research only",
    citation="Krause, Stark, Deng, Fei-Fei: 3D Object Representations for Fine-Grained Categorization, 2013",
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)

_BASES = ("cars196", "Cars196", "stanford_cars", "cars", ".")
_WHOLE = (("cars_annos.mat",), ("car_ims",))
_LABELLED_TEST = ("cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat")
_DEVKIT = (
    ("devkit/cars_train_annos.mat",),
    ("devkit/cars_meta.mat",),
    _LABELLED_TEST,
    ("cars_train",),
    ("cars_test",),
)


def read(request: Request, validation_share: float = 0.2) -> Content:
    """Read a split. The first half of the classes is for training, the second for testing.

    The publisher's own division into training and test images has every class on both sides; it plays no part.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
    """
    if locate(request.folders, _BASES, _DEVKIT)[0] is not None:
        names, labels, class_names, folder = _read_devkit(request.find(_BASES, _DEVKIT))
    else:
        names, labels, class_names, folder = _read_whole(request.find(_BASES, _WHOLE))
    numbers = np.array(labels, dtype=np.int64)
    part = rows_of_first_and_second_half(folder, numbers, len(class_names), request.split, validation_share)
    return file_content(folder, names, numbers, class_names, part)


def _read_whole(folder: Path) -> tuple[list[str], list[int], tuple[str, ...], Path]:
    path = folder / "cars_annos.mat"
    names, labels = _annotations(path, "relative_im_path")
    class_names = np.atleast_1d(read_mat(path, ("class_names",))["class_names"])
    return names, labels, tuple(str(name) for name in class_names), folder


def _read_devkit(folder: Path) -> tuple[list[str], list[int], tuple[str, ...], Path]:
    test = first_existing(folder, _LABELLED_TEST)
    names: list[str] = []
    labels: list[int] = []
    for prefix, path in (("cars_train", folder / "devkit" / "cars_train_annos.mat"), ("cars_test", test)):
        if path is not None:
            files, classes = _annotations(path, "fname")
            names += [f"{prefix}/{file}" for file in files]
            labels += classes
    class_names = np.atleast_1d(
        read_mat(folder / "devkit" / "cars_meta.mat", ("class_names",))["class_names"]
    )
    return names, labels, tuple(str(name) for name in class_names), folder


def _annotations(path: Path, key: str) -> tuple[list[str], list[int]]:
    """The image files and their classes, counted from 0."""
    rows = np.atleast_1d(read_mat(path, ("annotations",))["annotations"])
    fields = rows.dtype.names or ()
    for field in (key, "class"):
        if field not in fields:
            raise CorruptFileError(f"{path}: the annotations have no field {field!r}")
    return [str(name) for name in rows[key]], [int(label) - 1 for label in rows["class"]]
