"""CUB-200-2011: photographs of 200 species of birds, split by class."""

from __future__ import annotations

import numpy as np

from experiments.sets.readers import CorruptFileError
from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.shared import (
    as_number,
    file_content,
    read_table,
    rows_of_first_and_second_half,
)
from laplacian_metric.data.splits import STANDARD, Split

INFO = DataSetInfo(
    name="cub-200-2011",
    title="CUB-200-2011",
    layout="CUB_200_2011/{images.txt,image_class_labels.txt,classes.txt} and CUB_200_2011/images/",
    page="https://data.caltech.edu/records/65de6-vp158",
    obtain="unpack CUB_200_2011.tgz",
    licence="for non-commercial research and education only",
    citation="Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 Dataset, 2011",
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)

URL = "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz"
MD5 = "97eceeb196236b17998738112f37df78"  # as the page gives it
_FOLDER = "CUB_200_2011"
_NEEDED = ("images.txt", "image_class_labels.txt", "classes.txt", "images")


def read(request: Request, validation_share: float = 0.2) -> Content:
    """Read a split. The first half of the classes is for training, the second for testing.

    The file train_test_split.txt is for classification with all classes known; it plays no part.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
    """
    folder = request.find(
        (_FOLDER, "CUB_200_2011/CUB_200_2011", "cub2011/CUB_200_2011", "."),
        [(name,) for name in _NEEDED],
        lambda target: request.fetch_and_unpack(URL, target, _FOLDER, MD5),
    )
    listed, classed = folder / "images.txt", folder / "image_class_labels.txt"
    names = {as_number(number, listed): name for number, name in read_table(listed, 2)}
    labels = {
        as_number(number, classed): as_number(label, classed) - 1 for number, label in read_table(classed, 2)
    }
    if names.keys() != labels.keys():
        raise CorruptFileError(
            f"{folder}: images.txt lists {len(names)} images, image_class_labels.txt {len(labels)}"
        )
    class_names = tuple(name for _, name in read_table(folder / "classes.txt", 2))
    order = sorted(names)
    numbers = np.array([labels[number] for number in order], dtype=np.int64)
    part = rows_of_first_and_second_half(folder, numbers, len(class_names), request.split, validation_share)
    return file_content(folder / "images", [names[number] for number in order], numbers, class_names, part)
