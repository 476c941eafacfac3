"""The embedded sample: a small part of FashionMNIST and of MNIST that is installed with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch

from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.images import Preparation
from laplacian_metric.data.splits import parse_split

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
DIGITS = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class _Source:
    """What is known about one data set of which a part is embedded."""

    splits: tuple[str, ...]
    class_names: tuple[str, ...]
    licence: str
    citation: str


_SOURCES = {
    "fashion-mnist": _Source(
        splits=("train", "test"),
        class_names=FASHION_CLASSES,
        licence="MIT, copyright 2017 Zalando SE",
        citation="Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning "
        "Algorithms, 2017",
    ),
    "mnist": _Source(
        splits=("test",),
        class_names=DIGITS,
        licence="CC BY-SA 3.0, Yann LeCun, Corinna Cortes, Christopher J.C. Burges",
        citation="LeCun, Cortes, Burges: The MNIST database of handwritten digits, 1998",
    ),
}


def embedded_sample(name: str, split: str) -> Dataset:
    """Read one split of the embedded sample.

    FashionMNIST has 3,000 images of its training set and 1,000 of its test set, MNIST 1,000 of its test set;
    every class has the same number of images.

    Args:
        name: "fashion-mnist" or "mnist".
        split: "train" or "test"; MNIST has only "test", it serves as data from elsewhere.

    Raises:
        ValueError: the sample has no such data set, or no such split of it.

    Example:
        >>> from laplacian_metric.data import embedded_sample
        >>> sample = embedded_sample("mnist", "test")
        >>> len(sample), tuple(sample.floats().shape)
        (1000, (1000, 1, 28, 28))
    """
    if name not in _SOURCES:
        raise ValueError(f"no embedded sample is called {name!r}; there are: {', '.join(sorted(_SOURCES))}")
    source = _SOURCES[name]
    if split not in source.splits:
        raise ValueError(
            f"the embedded sample of {name} has no split {split!r}; there is: {', '.join(source.splits)}"
        )
    file = resources.files("laplacian_metric.data") / "_sample" / f"{name}-{split}.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        images, labels, indices = (torch.from_numpy(arrays[key]) for key in ("images", "labels", "indices"))
    return Dataset(
        images[:, None],
        labels,
        name=name,
        split=parse_split(split),
        class_names=source.class_names,
        indices=indices.to(torch.int64),
        preparation=Preparation(),
        licence=source.licence,
        citation=source.citation,
    )
