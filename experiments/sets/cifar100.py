"""CIFAR-100's test images, 32 x 32, ordered by class."""

from __future__ import annotations

import json

import numpy as np
import torch

from experiments.sets.lookup import find
from experiments.sets.shared import array_data, mosaic
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import Split
from laplacian_metric.data import DataSetInfo, Request

INFO = DataSetInfo(
    name="cifar-100-test",
    title="CIFAR-100, test images",
    layout="cifar100/{cifar100-test.webp,classes.json}",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    obtain="a mosaic of the test images ordered by class, and the list of [class, kind]",
    licence="none stated: for research, not to be redistributed",
    citation="Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009",
    splits=(Split.TEST,),
)


def read(request: Request) -> Dataset:
    """Return the test images; `extras["super_class"]` (N,) is one of the twenty kinds, in the order of their names."""
    folder = find(request, ("cifar100", "."), ["cifar100-test.webp", "classes.json"])
    images = mosaic(folder / "cifar100-test.webp", 32)
    classes = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    names, kinds = zip(*classes, strict=True)
    labels = np.repeat(np.arange(len(names)), len(images) // len(names))
    coarse = torch.from_numpy(np.unique(kinds, return_inverse=True)[1][labels])
    return array_data(images, labels, request.split, names, 0, {"super_class": coarse})
