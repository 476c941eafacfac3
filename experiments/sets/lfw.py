"""LFW, Labeled Faces in the Wild: photographs of 5,749 people, split by person."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from experiments.sets.lookup import first_existing
from experiments.sets.readers import CorruptFileError
from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.shared import as_number, file_content
from laplacian_metric.data.splits import STANDARD, Split, part_of_classes

INFO = DataSetInfo(
    name="lfw",
    title="Labeled Faces in the Wild",
    layout="lfw/{lfw-deepfunneled,lfw_funneled,lfw}/Name/Name_0001.jpg, with peopleDevTrain and peopleDevTest (.txt or "
    ".csv) beside; lfw-py/ and lfw_home/ are looked in too",
    page="http://vis-www.cs.umass.edu/lfw/",
    obtain="its publisher's files are no longer served; kaggle datasets download -d jessicali9530/lfw-dataset has the "
    "deep-funneled images and both lists",
    licence="for research; the photographs belong to their photographers",
    citation="Huang, Ramesh, Berg, Learned-Miller: Labeled Faces in the Wild, 2007",
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)

_IMAGES = (
    "lfw-deepfunneled/lfw-deepfunneled",
    "lfw-deepfunneled",
    "lfw_funneled/lfw_funneled",
    "lfw_funneled",
    "lfw",
)
_TRAIN = ("peopleDevTrain.txt", "peopleDevTrain.csv")
_TEST = ("peopleDevTest.txt", "peopleDevTest.csv")


def read(request: Request, validation_share: float = 0.2) -> Content:
    """Read a split. The people of peopleDevTrain are for training, those of peopleDevTest for testing.

    Most people have one image only, which has no positive.

    Args:
        validation_share: how many of the training people are for validation, at even steps.
    """
    folder = request.find(("lfw", "lfw-py", "lfw_home", "LFW", "."), [_IMAGES, _TRAIN, _TEST])
    root, first, second = (first_existing(folder, names) for names in (_IMAGES, _TRAIN, _TEST))
    if root is None or first is None or second is None:
        raise FileNotFoundError(f"{folder} changed while it was read; try again")
    train, test = _people(first), _people(second)
    both = sorted(train.keys() & test.keys())
    if both:
        raise CorruptFileError(f"{second}: {both[0]} is listed for training too")
    people = {**train, **test}
    class_names = tuple(sorted(people))
    number = {person: label for label, person in enumerate(class_names)}
    names = [
        f"{person}/{person}_{image:04d}.jpg"
        for person in class_names
        for image in range(1, people[person] + 1)
    ]
    counts = [people[person] for person in class_names]
    labels = np.repeat(np.arange(len(class_names), dtype=np.int64), counts)
    chosen = part_of_classes(
        np.array(sorted(number[person] for person in train), dtype=np.int64),
        np.array(sorted(number[person] for person in test), dtype=np.int64),
        request.split,
        validation_share,
    )
    part = np.flatnonzero(np.isin(labels, chosen)).astype(np.int64)
    return file_content(root, names, labels, class_names, part)


def _people(path: Path) -> dict[str, int]:
    """The number of images of everyone in a list of people."""
    lines = [re.split(r"[\t,]", line.strip()) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [line for line in lines if line != [""]]
    # A text file begins with the number of people, a table with its header.
    announced = as_number(rows[0][0], path) if rows and len(rows[0]) == 1 else None
    rows = rows[1:]
    if announced is not None and announced != len(rows):
        raise CorruptFileError(f"{path} announces {announced} people but lists {len(rows)}")
    wrong = next((row for row in rows if len(row) != 2), None)
    if wrong is not None or not rows:
        raise CorruptFileError(f"{path} must list a name and a number of images in each line, found {wrong}")
    people = {person: as_number(count, path) for person, count in rows}
    if len(people) < len(rows):
        raise CorruptFileError(f"{path} lists somebody twice")
    return people
