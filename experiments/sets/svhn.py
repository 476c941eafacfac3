"""SVHN: digits of house numbers out of street views, 32 x 32 (the cropped format)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.sets.lookup import find
from experiments.sets.shared import array_data, mosaic
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import Split
from laplacian_metric.data import DataSetInfo, Request
from laplacian_metric.data.sample import DIGITS

PAGE = "http://ufldl.stanford.edu/housenumbers/"
LICENCE = "for non-commercial use only"
CITATION = (
    "Netzer, Wang, Coates, Bissacco, Wu, Ng: Reading Digits in Natural Images with Unsupervised Feature "
    "Learning, 2011"
)
INFO = DataSetInfo(
    name="svhn",
    title="SVHN (cropped digits)",
    layout="train_32x32.mat and test_32x32.mat, in the data folder or in svhn/",
    page=PAGE,
    obtain="torchvision.datasets.SVHN(folder, split, download=True) gets it too",
    licence=LICENCE,
    citation=CITATION,
)
FIRST = DataSetInfo(
    name="svhn-first-10000",
    title="SVHN (cropped digits), the first 10,000 test images",
    layout="svhn/{svhn-test-first10000.webp,svhn-test-first10000-labels.npy}",
    page=PAGE,
    obtain="a mosaic of 100 x 100 test images in their order, and their labels 0 to 9",
    licence=LICENCE,
    citation=CITATION,
    splits=(Split.TEST,),
)


def read(request: Request, held_out: int = 5000) -> Dataset:
    """Return a split.

    Args:
        held_out: how many of the 73,257 training images are for validation: the last ones of every class.
    """
    from torchvision.datasets import SVHN

    split = "test" if request.split is Split.TEST else "train"

    def fetch(folder: Path) -> object:
        return SVHN(folder / "svhn", split, download=True)

    published = SVHN(find(request, ("svhn", "SVHN", "."), [f"{split}_32x32.mat"], fetch), split)
    return array_data(published.data, published.labels, request.split, DIGITS, held_out)


def read_first(request: Request) -> Dataset:
    """Return the first 10,000 test images."""
    name = "svhn-test-first10000"
    folder = find(request, ("svhn", "."), [f"{name}.webp", f"{name}-labels.npy"])
    labels = np.load(folder / f"{name}-labels.npy").astype(np.int64)
    return array_data(mosaic(folder / f"{name}.webp", 32), labels, request.split, DIGITS, 0)
