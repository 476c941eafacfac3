"""CIFAR-10, with the human labels of CIFAR-10N (training images) and CIFAR-10H (test images).

The official binary version is read. The official Python version consists of pickled objects, which run code when
they are read, and is left alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.sets.lookup import MissingDataError, data_folders, find
from experiments.sets.shared import array_data
from laplacian_metric.core.arguments import one_of
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.splits import Split
from laplacian_metric.data import DataSetInfo, Request

INFO = DataSetInfo(
    name="cifar-10",
    title="CIFAR-10 (binary version)",
    layout="cifar-10-batches-bin/*.bin, and cifar10n.npz and cifar10h-probs.npy for the human labels",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    obtain="unpack cifar-10-binary.tar.gz; the Python version is pickled and is not read",
    licence="none stated: for research, not to be redistributed; CIFAR-10H is under CC BY-NC-SA 4.0, for CIFAR-10N see "
    "its page",
    citation="Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009; human labels: Peterson, "
    "Battleday, Griffiths, Russakovsky: Human uncertainty makes classification more robust, 2019; Wei, Zhu, Cheng, "
    "Liu, Niu, Liu: Learning with Noisy Labels Revisited, 2022",
)

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # as the page gives it
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

FOLDER = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
RECORD = 1 + 3 * 32 * 32  # a label and the bytes of an image
# What `labels` calls them, and the arrays of the file.
CIFAR10N = {
    "aggregate": "aggre_label",
    "worst": "worse_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
}
WHERE_N = (
    "CIFAR-10N is published at http://noisylabels.com as CIFAR-10_human.pt, a pickled dictionary; if you trust it: "
    "python -c \"import numpy, torch; numpy.savez('cifar10n.npz', "
    "**torch.load('CIFAR-10_human.pt', weights_only=False))\""
)
WHERE_H = "CIFAR-10H is published at https://github.com/jcpeterson/cifar-10h as data/cifar10h-probs.npy"


def read(
    request: Request,
    held_out: int = 5000,
    labels: str = "clean",
    human_labels: bool | None = None,
    zero_shot: bool = False,
) -> Dataset:
    """Return a split.

    Training and validation images get `extras["human_labels"]` (N, 3), the labels that three people gave; test
    images get `extras["human_distribution"]` (N, 10), how about fifty people's labels are spread.

    Args:
        held_out: how many of the 50,000 training images (25,000 with `zero_shot`) are for validation: the last ones of
            every class, by the clean labels.
        labels: "clean", or those of CIFAR-10N for training and validation: "aggregate" (majority of three people),
            "worst" (a wrong one where any is wrong), "random1", "random2" or "random3" (one person's).
        human_labels: True to insist on the extras, False to leave them out; by default they are read if their files
            exist.
        zero_shot: True to split by class: training and validation images are those of the first five classes, test
            images those of the last five. Classes keep their labels, 0 to 4 and 5 to 9.
    """
    one_of(("clean", *CIFAR10N), labels=labels)
    testing = request.split is Split.TEST
    if labels != "clean" and testing:
        raise ValueError(f"labels is {labels!r}, but CIFAR-10N has no labels for test images")
    if labels != "clean" and zero_shot:
        raise ValueError(
            f"labels={labels!r} has training images of the first five classes that are named as one of the last five, "
            "which zero_shot keeps for testing: leave one of the two out"
        )
    from torchvision.datasets.utils import download_and_extract_archive

    folder = find(
        request, (FOLDER, "."), (*TRAIN, *TEST), partial(download_and_extract_archive, URL, md5=MD5)
    )
    batches = [_read_batch(folder / name) for name in (TEST if testing else TRAIN)]
    images, clean = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    extras: dict[str, torch.Tensor] = {}
    if human_labels is not False or labels != "clean":
        required = human_labels is True or labels != "clean"
        extras = (_read_h if testing else _read_n)(request, folder, clean, required)
    if not zero_shot:
        data = array_data(images, clean, request.split, CLASSES, held_out, extras)
        return data if labels == "clean" else replace(data, labels=data.extras[f"{labels}_label"])
    own = np.flatnonzero((clean >= len(CLASSES) // 2) == testing)
    extras = {name: values[torch.from_numpy(own)] for name, values in extras.items()}
    data = array_data(images[own], clean[own], request.split, CLASSES, held_out, extras)
    return replace(data, indices=torch.from_numpy(own)[data.indices])


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images (N, 3, 32, 32) and labels (N,) of a file of the binary version."""
    content = np.fromfile(path, dtype=np.uint8)
    if content.size == 0 or content.size % RECORD:
        raise ValueError(f"{path} has {content.size} bytes, no multiple of {RECORD}: get it again")
    rows = content.reshape(-1, RECORD)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def _beside(request: Request, folder: Path, name: str, where: str, required: bool) -> Path | None:
    """Return a file of human labels, in a data folder or beside the images."""
    places = (*data_folders(request.data_dir), folder, folder.parent)
    file = next((place / name for place in places if (place / name).is_file()), None)
    if file is None and required:
        raise MissingDataError(f"{name} was not found in {', '.join(map(str, places))}; {where}")
    return file


def _read_n(
    request: Request, folder: Path, clean: NDArray[np.int64], required: bool
) -> dict[str, torch.Tensor]:
    path = _beside(request, folder, "cifar10n.npz", WHERE_N, required)
    if path is None:
        return {}
    with np.load(path) as stored:
        if not np.array_equal(stored["clean_label"], clean):
            raise ValueError(f"the clean labels of {path} are not those of {folder}: get both again")
        extras = {
            f"{name}_label": torch.from_numpy(stored[key].astype(np.int64)) for name, key in CIFAR10N.items()
        }
    extras["human_labels"] = torch.stack([extras[f"random{person}_label"] for person in (1, 2, 3)], dim=1)
    return extras


def _read_h(
    request: Request, folder: Path, clean: NDArray[np.int64], required: bool
) -> dict[str, torch.Tensor]:
    path = _beside(request, folder, "cifar10h-probs.npy", WHERE_H, required)
    if path is None:
        return {}
    shares = np.load(path).astype(np.float64)
    valid = shares.shape == (clean.size, 10) and shares.min() >= 0
    if not (valid and np.allclose(shares.sum(axis=1), 1.0, atol=1e-6)):
        raise ValueError(f"{path} must hold probabilities of shape {(clean.size, 10)}: get it again")
    return {"human_distribution": torch.from_numpy(shares)}
