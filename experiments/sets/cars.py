"""Cars-196 (Stanford Cars): photographs of 196 models of cars, split by class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.sets.lookup import find
from experiments.sets.shared import file_data, read_table, rows_of_halves
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import STANDARD, Split
from laplacian_metric.data import DataSetInfo, Request

PAGE = "https://ai.stanford.edu/~jkrause/cars/car_dataset.html"
LICENCE = "for non-commercial research only"
CITATION = "Krause, Stark, Deng, Fei-Fei: 3D Object Representations for Fine-Grained Categorization, 2013"
INFO = DataSetInfo(
    name="cars-196",
    title="Cars-196",
    layout="stanford_cars/{cars_train/,cars_test/,devkit/,cars_test_annos_withlabels.mat} as torchvision has it",
    page=PAGE,
    obtain="its publisher's files are no longer served; kaggle datasets download -d "
    "rickyyyyyyy/torchvision-stanford-cars",
    licence=LICENCE,
    citation=CITATION,
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)
CROPS = DataSetInfo(
    name="cars-196-crops",
    title="Cars-196, 3,136 training crops",
    layout="cars196/{labels.csv,cars_train/}",
    page=PAGE,
    obtain="the first 16 training images of each class, cropped to their boxes, and a table of file and class",
    licence=LICENCE,
    citation=CITATION,
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)
ANNOTATIONS = {
    "cars_train": "devkit/cars_train_annos.mat",
    "cars_test": "cars_test_annos_withlabels.mat",
}


def read(request: Request, validation_share: float = 0.2) -> Dataset:
    """Return a split. The first half of the classes is for training, the second for testing.

    The publisher's own division into training and test images has every class on both sides; it plays no part.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
    """
    needed = (*ANNOTATIONS, *ANNOTATIONS.values(), "devkit/cars_meta.mat")
    folder = find(request, ("stanford_cars", "."), needed)
    names: list[str] = []
    labels: list[int] = []
    for part, file in ANNOTATIONS.items():
        rows = _variable(folder / file, "annotations")
        names += [f"{part}/{name}" for name in rows["fname"]]
        labels += [int(label) - 1 for label in rows["class"]]
    class_names = [str(name) for name in _variable(folder / "devkit" / "cars_meta.mat", "class_names")]
    numbers = np.array(labels, dtype=np.int64)
    chosen = rows_of_halves(folder, numbers, len(class_names), request.split, validation_share)
    return file_data(folder, names, numbers, class_names, chosen)


def _variable(path: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat

    return np.atleast_1d(loadmat(path, squeeze_me=True, variable_names=[name])[name])


def read_crops(request: Request, validation_share: float = 0.2) -> Dataset:
    """Return a split of the cropped training images, by the same classes.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
    """
    folder = find(request, ("cars196", "."), ["labels.csv", "cars_train"])
    table = read_table(folder / "labels.csv", ["file", "class", "class_name"], dtype={"class": np.int64})
    labels = table["class"].to_numpy() - 1
    class_names = table.groupby("class")["class_name"].first().tolist()
    rows = rows_of_halves(folder, labels, len(class_names), request.split, validation_share)
    return file_data(folder / "cars_train", table["file"].tolist(), labels, class_names, rows)
