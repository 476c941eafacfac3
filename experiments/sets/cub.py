"""CUB-200-2011: photographs of 200 species of birds, split by class."""

from __future__ import annotations

from functools import partial

import numpy as np

from experiments.sets.lookup import find
from experiments.sets.shared import file_data, read_table, rows_of_halves
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import STANDARD, Split
from laplacian_metric.data import DataSetInfo, Request

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
BASES = ("CUB_200_2011", "CUB_200_2011/CUB_200_2011", "cub2011/CUB_200_2011", ".")
NEEDED = ("images.txt", "image_class_labels.txt", "classes.txt", "images")


def read(request: Request, validation_share: float = 0.2) -> Dataset:
    """Return a split. The first half of the classes is for training, the second for testing.

    The file train_test_split.txt is for classification with all classes known; it plays no part.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
    """
    from torchvision.datasets.utils import download_and_extract_archive

    folder = find(request, BASES, NEEDED, partial(download_and_extract_archive, URL, md5=MD5))
    numbered = {"sep": " ", "header": None, "index_col": 0}
    names = read_table(folder / "images.txt", ["1"], **numbered)["1"]
    labels = read_table(folder / "image_class_labels.txt", ["1"], dtype=np.int64, **numbered)["1"]
    if sorted(names.index) != sorted(labels.index):
        raise ValueError(
            f"{folder}: images.txt lists {len(names)} images, image_class_labels.txt {len(labels)}"
        )
    names = names.sort_index()
    numbers = labels[names.index].to_numpy() - 1
    lines = (folder / "classes.txt").read_text(encoding="utf-8").splitlines()
    class_names = [line.partition(" ")[2] for line in lines if line.strip()]  # a name may hold blanks
    rows = rows_of_halves(folder, numbers, len(class_names), request.split, validation_share)
    return file_data(folder / "images", names.tolist(), numbers, class_names, rows)
