"""LFW, Labeled Faces in the Wild: photographs of 5,749 people, split by person; and small grey ones with pairs."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.sets.lookup import find
from experiments.sets.shared import array_data, file_data, mosaic, read_table
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import STANDARD, Split, part_of_classes
from laplacian_metric.data import DataSetInfo, Request

PAGE = "http://vis-www.cs.umass.edu/lfw/"
LICENCE = "for research; the photographs belong to their photographers"
CITATION = "Huang, Ramesh, Berg, Learned-Miller: Labeled Faces in the Wild, 2007"
INFO = DataSetInfo(
    name="lfw",
    title="Labeled Faces in the Wild",
    layout="lfw/{lfw-deepfunneled,lfw_funneled,lfw}/Name/Name_0001.jpg, with peopleDevTrain and peopleDevTest (.txt or "
    ".csv) beside; lfw-py/ and lfw_home/ are looked in too",
    page=PAGE,
    obtain="its publisher's files are no longer served; kaggle datasets download -d jessicali9530/lfw-dataset has the "
    "deep-funneled images and both lists",
    licence=LICENCE,
    citation=CITATION,
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)
GRAY = DataSetInfo(
    name="lfw-gray",
    title="Labeled Faces in the Wild, grey and 64 x 64",
    layout="lfw/{lfw-gray-64px.jpg,names.txt.gz,pairs.tsv.gz}",
    page=PAGE,
    obtain="a mosaic of the middle of every photograph, and the official pairs",
    licence=LICENCE,
    citation=CITATION,
    splits=(Split.TEST,),
)
IMAGES = ("lfw-deepfunneled/lfw-deepfunneled", "lfw-deepfunneled", "lfw_funneled", "lfw")


def read(request: Request, validation_share: float = 0.2) -> Dataset:
    """Return a split. The people of peopleDevTrain are for training, those of peopleDevTest for testing.

    Most people have one image only, which has no positive.

    Args:
        validation_share: how many of the training people are for validation, at even steps.
    """
    lists = ("peopleDevTrain.*", "peopleDevTest.*")
    folder = find(request, ("lfw", "lfw-py", "lfw_home", "LFW", "."), ("lfw*", *lists))
    root = next(folder / name for name in IMAGES if (folder / name).is_dir())
    train, test = (_people(next(folder.glob(pattern))) for pattern in lists)
    people = pd.concat([train, test]).sort_index()
    if people.index.has_duplicates:
        raise ValueError(f"{folder}: {people.index[people.index.duplicated()][0]} is listed twice")
    names = [
        f"{person}/{person}_{image:04d}.jpg"
        for person, count in people.items()
        for image in range(1, count + 1)
    ]
    labels = np.repeat(np.arange(len(people)), people)
    trained, tested = (np.sort(people.index.get_indexer(part.index)) for part in (train, test))
    chosen = part_of_classes(trained, tested, request.split, validation_share)
    return file_data(root, names, labels, list(people.index), np.flatnonzero(np.isin(labels, chosen)))


def _people(path: Path) -> pd.Series:
    """Return the number of images of everyone in a list, by name; a text file announces how many people follow."""
    table = read_table(path, ["0", "1"], sep=r"[\t,]", engine="python", header=None, names=[0, 1], dtype=str)
    first, rows = table.iloc[0], table.iloc[1:]
    if first.isna()["1"] and int(first["0"]) != len(rows):
        raise ValueError(f"{path} announces {first['0']} people but lists {len(rows)}")
    return rows.set_index("0")["1"].astype(np.int64)


def read_gray(request: Request) -> Dataset:
    """Return all faces, labelled by person in the order of their names; `item_ids` are the published files."""
    folder = find(request, ("lfw", "."), ["lfw-gray-64px.jpg", "names.txt.gz"])
    with gzip.open(folder / "names.txt.gz", "rt", encoding="utf-8") as stream:
        files = stream.read().split()
    people, labels = np.unique([file.split("/")[0] for file in files], return_inverse=True)
    faces = mosaic(folder / "lfw-gray-64px.jpg", 64, "L")[: len(files)]
    return array_data(faces, labels, request.split, tuple(people.tolist()), 0)


def pairs(folder: Path) -> pd.DataFrame:
    """Return the official pairs in the folder of the grey faces: positions first and second, same, and fold."""
    with gzip.open(folder / "names.txt.gz", "rt", encoding="utf-8") as stream:
        position = {file: row for row, file in enumerate(stream.read().split())}
    table = read_table(folder / "pairs.tsv.gz", ["file1", "file2", "same", "fold"], sep="\t")
    first, second = (table[name].map(position) for name in ("file1", "file2"))
    return pd.DataFrame({"first": first, "second": second, "same": table["same"], "fold": table["fold"]})
