"""The embedded samples: a small part of Fashion-MNIST and of MNIST that is installed with the package."""

from __future__ import annotations

import dataclasses
from importlib import resources

import numpy as np
import torch

from laplacian_metric.data.dataset import Dataset
from laplacian_metric.data.images import Preparation
from laplacian_metric.data.source import Content, Request
from experiments.sets import fashion_mnist, mnist
from experiments.sets.shared import array_content
from laplacian_metric.data.splits import Split, parse_split

_LAYOUT = "no files: it is installed with the package"
# What is embedded: the splits, the classes' names, and what is known of the whole data set.
_SAMPLES = {
    "fashion-mnist": (("train", "test"), fashion_mnist.CLASSES, fashion_mnist.INFO),
    "mnist": (("test",), mnist.DIGITS, mnist.INFO),
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
    if name not in _SAMPLES:
        raise ValueError(f"no embedded sample is called {name!r}; there are: {', '.join(sorted(_SAMPLES))}")
    splits, class_names, info = _SAMPLES[name]
    if split not in splits:
        raise ValueError(
            f"the embedded sample of {name} has no split {split!r}; there is: {', '.join(splits)}"
        )
    file = resources.files("laplacian_metric.data") / "_sample" / f"{name}-{split}.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        images, labels, indices = (torch.from_numpy(arrays[key]) for key in ("images", "labels", "indices"))
    return Dataset(
        images[:, None],
        labels,
        name=name,
        split=parse_split(split),
        class_names=class_names,
        indices=indices.to(torch.int64),
        preparation=Preparation(),
        licence=info.licence,
        citation=info.citation,
    )


def _content(sample: Dataset, split: Split, held_out: int) -> Content:
    return array_content(
        sample.images.numpy(),
        sample.labels.numpy(),
        split,
        sample.class_names,
        held_out,
        {"original_index": sample.indices},
    )


class SampleFashionMNIST:
    """The embedded part of Fashion-MNIST as a source of `data.load`: 3,000 training and 1,000 test images."""

    INFO = dataclasses.replace(
        fashion_mnist.INFO,
        name="sample-fashion-mnist",
        title="the embedded sample of Fashion-MNIST",
        layout=_LAYOUT,
        obtain="",
    )

    @staticmethod
    def read(request: Request, held_out: int = 500) -> Content:
        """Read a split; `indices` are positions among the images of the sample.

        Args:
            held_out: how many of the 3,000 training images are for validation: the last ones of every class.
        """
        sample = embedded_sample("fashion-mnist", "test" if request.split is Split.TEST else "train")
        return _content(sample, request.split, held_out)


class SampleMNIST:
    """The embedded part of MNIST as a source of `data.load`: 1,000 test images, to serve as data from elsewhere."""

    INFO = dataclasses.replace(
        mnist.INFO,
        name="sample-mnist",
        title="the embedded sample of MNIST",
        splits=(Split.TEST,),
        layout=_LAYOUT,
        obtain="",
    )

    @staticmethod
    def read(request: Request) -> Content:
        """Read the test split; `indices` are positions among the images of the sample."""
        return _content(embedded_sample("mnist", "test"), request.split, 0)
