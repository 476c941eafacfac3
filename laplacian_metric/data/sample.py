"""The embedded samples: a small part of Fashion-MNIST and of MNIST that is installed with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.arguments import check_known
from laplacian_metric.core.splits import STANDARD, Split, parse_split, part_of_training

if TYPE_CHECKING:
    from laplacian_metric.core.dataset import Dataset
    from laplacian_metric.data.registry import Request

HELD_OUT = 500
CLOTHES = (
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
class Sample:
    """What is embedded of one data set, and where the whole of it comes from."""

    title: str
    class_names: tuple[str, ...]
    splits: tuple[Split, ...]
    page: str
    licence: str
    citation: str


SAMPLES = {
    "sample-fashion-mnist": Sample(
        "the embedded sample of Fashion-MNIST",
        CLOTHES,
        STANDARD,
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT, copyright 2017 Zalando SE",
        "Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms, "
        "2017",
    ),
    "sample-mnist": Sample(
        "the embedded sample of MNIST",
        DIGITS,
        (Split.TEST,),
        "http://yann.lecun.com/exdb/mnist/",
        "CC BY-SA 3.0, Yann LeCun, Corinna Cortes, Christopher J.C. Burges",
        "LeCun, Cortes, Burges: The MNIST database of handwritten digits, 1998",
    ),
}


def arrays(name: str, split: str | Split = Split.TRAIN) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images (N, 28, 28), uint8, and the labels (N,) of a split of an embedded sample; numpy is enough.

    Args:
        name: "sample-fashion-mnist", 2,500 training, 500 validation and 1,000 test images, or "sample-mnist", 1,000
            test images.
        split: as `load` takes it.

    Example:
        >>> images, labels = arrays("sample-mnist", "test")
        >>> images.shape, np.bincount(labels).tolist()
        ((1000, 28, 28), [100, 100, 100, 100, 100, 100, 100, 100, 100, 100])
    """
    check_known("embedded sample", name, tuple(SAMPLES))
    wanted = parse_split(split, SAMPLES[name].splits, name)
    images, labels, _, rows = _read(name, wanted, HELD_OUT)
    return images[rows], labels[rows]


def _read(
    name: str, split: Split, held_out: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return images, labels and original positions of a whole file, and the rows of it that are in a split."""
    part = "test" if split is Split.TEST else "train"
    file = resources.files("laplacian_metric.data") / "_sample" / f"{name.removeprefix('sample-')}-{part}.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        images, labels, indices = stored["images"], stored["labels"].astype(np.int64), stored["indices"]
    rows = np.arange(len(labels)) if part == "test" else part_of_training(labels, split, held_out)
    return images, labels, indices.astype(np.int64), rows


def read(name: str, request: Request, held_out: int = HELD_OUT) -> Dataset:
    """Return a split; `indices` are positions in the sample, `extras["original_index"]` those in the whole data set.

    Args:
        held_out: how many of the 3,000 training images are for validation: the last ones of every class.
    """
    import torch

    from laplacian_metric.core.dataset import Dataset

    images, labels, original, rows = _read(name, request.split, held_out)
    return Dataset(
        torch.from_numpy(images[rows][:, None]),
        labels[rows],
        class_names=SAMPLES[name].class_names,
        indices=torch.from_numpy(rows),
        extras={"original_index": torch.from_numpy(original[rows])},
    )
