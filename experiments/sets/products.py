"""Stanford Online Products: photographs of 22,634 things that were sold online, split by class."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from experiments.sets.lookup import find
from experiments.sets.shared import file_data, read_table
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import STANDARD, Split, part_of_classes
from laplacian_metric.data import DataSetInfo, Request

INFO = DataSetInfo(
    name="stanford-online-products",
    title="Stanford Online Products",
    layout="Stanford_Online_Products/{Ebay_train.txt,Ebay_test.txt,*_final/}",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
    obtain="unpack Stanford_Online_Products.zip; no checksum of it is published",
    licence="for non-commercial research only",
    citation="Oh Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding, 2016",
    splits=(*STANDARD, Split.ALL),
    preprocessing="imagenet",
    image_size=224,
)
LISTS = ("Ebay_train.txt", "Ebay_test.txt")
NUMBERS = {"class_id": np.int64, "super_class_id": np.int64}


def read(request: Request, validation_share: float = 0.2) -> Dataset:
    """Return a split. Training and test classes are those of Ebay_train.txt and Ebay_test.txt.

    `extras["super_class"]` (N,) is the kind of thing, counted from 0.

    Args:
        validation_share: how many of the training classes are for validation, at even steps.
    """
    folder = find(request, ("Stanford_Online_Products", "."), LISTS)
    parts = [read_table(folder / name, ["path", *NUMBERS], sep=" ", dtype=NUMBERS) for name in LISTS]
    train, test = (np.unique(part["class_id"].to_numpy()) - 1 for part in parts)
    both = np.intersect1d(train, test)
    if both.size:
        raise ValueError(f"{folder}: class {both[0] + 1} is for training and for testing")
    table = pd.concat(parts)
    labels = table["class_id"].to_numpy() - 1
    chosen = part_of_classes(train, test, request.split, validation_share)
    names = [f"product {number + 1}" for number in range(int(labels.max()) + 1)]
    kinds = {"super_class": torch.from_numpy(table["super_class_id"].to_numpy() - 1)}
    rows = np.flatnonzero(np.isin(labels, chosen))
    return file_data(folder, table["path"].tolist(), labels, names, rows, kinds)
