"""Oxford-IIIT Pet: photographs of 37 breeds of cats and dogs (its trainval list), split by class."""

from __future__ import annotations

import numpy as np
import torch

from experiments.sets.lookup import find
from experiments.sets.shared import file_data, read_table, rows_of_halves
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import STANDARD, Split
from laplacian_metric.data import DataSetInfo, Request

INFO = DataSetInfo(
    name="oxford-pets",
    title="Oxford-IIIT Pet, trainval images",
    layout="oxford-iiit-pet/{images/,annotations/trainval.txt}",
    page="https://www.robots.ox.ac.uk/~vgg/data/pets/",
    obtain="torchvision.datasets.OxfordIIITPet(folder, download=True) gets it",
    licence="CC BY-SA 4.0",
    citation="Parkhi, Vedaldi, Zisserman, Jawahar: Cats and Dogs, 2012",
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)


def read(request: Request, validation_share: float = 0.2) -> Dataset:
    """Return a split. The first half of the classes is for training, the second for testing.

    `extras["species"]` (N,) is 0 for cats and 1 for dogs.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
    """
    folder = find(request, ("oxford-iiit-pet", "."), ["images", "annotations/trainval.txt"])
    columns = ["name", "class", "species", "breed"]
    table = read_table(
        folder / "annotations" / "trainval.txt",
        columns,
        sep=" ",
        names=columns,
        dtype={"class": np.int64, "species": np.int64},
    )
    labels = table["class"].to_numpy() - 1
    breeds = table["name"].str.rsplit("_", n=1).str[0]
    names = breeds.groupby(labels).first().tolist()
    rows = rows_of_halves(folder, labels, len(names), request.split, validation_share)
    species = torch.from_numpy(table["species"].to_numpy() - 1)
    files = [f"{name}.jpg" for name in table["name"]]
    return file_data(folder / "images", files, labels, names, rows, {"species": species})
