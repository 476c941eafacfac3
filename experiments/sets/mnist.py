"""MNIST, handwritten digits, and Fashion-MNIST, articles of clothing: 28 x 28, ten classes each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from experiments.sets.lookup import find
from experiments.sets.shared import array_data
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import Split
from laplacian_metric.data import DataSetInfo, Request
from laplacian_metric.data.sample import SAMPLES

CLOTHES, DIGITS = SAMPLES["sample-fashion-mnist"], SAMPLES["sample-mnist"]
INFO = DataSetInfo(
    name="mnist",
    title="MNIST",
    layout="MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte",
    page=DIGITS.page,
    obtain="torchvision.datasets.MNIST(folder, download=True) gets it too",
    licence=DIGITS.licence,
    citation=DIGITS.citation,
)
FASHION = DataSetInfo(
    name="fashion-mnist",
    title="Fashion-MNIST",
    layout="FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte",
    page=CLOTHES.page,
    obtain="torchvision.datasets.FashionMNIST(folder, download=True) gets it too",
    licence=CLOTHES.licence,
    citation=CLOTHES.citation,
)
FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def published(request: Request, name: str = "MNIST") -> Any:
    """Return torchvision's data set, with its `data` (N, 28, 28) and `targets` (N,); N-digit MNIST is made of it."""
    from torchvision import datasets

    kind = getattr(datasets, name)

    def fetch(folder: Path) -> object:
        return kind(folder, download=True)

    folder = find(request, (".",), [f"{name}/raw/{file}" for file in FILES], fetch)
    loaded = kind(folder, train=request.split is not Split.TEST)
    if len(loaded.data) != len(loaded.targets):
        raise ValueError(
            f"{folder / name} has {len(loaded.data)} images but {len(loaded.targets)} labels; get both again"
        )
    return loaded


def _read(name: str, class_names: tuple[str, ...], request: Request, held_out: int = 5000) -> Dataset:
    """Return a split.

    Args:
        held_out: how many of the 60,000 training images are for validation: the last ones of every class.
    """
    loaded = published(request, name)
    return array_data(
        loaded.data.numpy()[:, None], loaded.targets.numpy(), request.split, class_names, held_out
    )


read = partial(_read, "MNIST", DIGITS.class_names)
read_fashion = partial(_read, "FashionMNIST", CLOTHES.class_names)
