"""CIFAR-10, with the human labels of CIFAR-10N (training images) and CIFAR-10H (test images).

The official binary version is read. The official Python version consists of pickled objects, which run code when
they are read, and is left alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from experiments.sets.lookup import MissingDataError
from experiments.sets.readers import CorruptFileError, read_cifar_batch, read_npy, read_npz
from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.shared import array_content
from laplacian_metric.data.splits import Split

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

_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)
_CIFAR10N = "cifar10n.npz"
_CIFAR10H = "cifar10h-probs.npy"
_KEYS = {
    "aggregate": "aggre_label",
    "worst": "worse_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
}
URL_H = "https://raw.githubusercontent.com/jcpeterson/cifar-10h/master/data/cifar10h-probs.npy"  # without checksum
_WHERE_N = (
    "CIFAR-10N is published at http://noisylabels.com as CIFAR-10_human.pt, a pickled dictionary; if you trust it: "
    "python -c \"import numpy, torch; numpy.savez('cifar10n.npz', "
    "**torch.load('CIFAR-10_human.pt', weights_only=False))\""
)
_WHERE_H = "CIFAR-10H is published at https://github.com/jcpeterson/cifar-10h as data/cifar10h-probs.npy"


def read(
    request: Request,
    held_out: int = 5000,
    labels: str = "clean",
    human_labels: bool | None = None,
    zero_shot: bool = False,
) -> Content:
    """Read a split.

    Training and validation images get `extras["human_labels"]` (N, 3), the labels that three people gave; test
    images get `extras["human_distribution"]` (N, 10), how about fifty people's labels are spread.

    Args:
        held_out: how many of the 50,000 training images (25,000 with `zero_shot`) are for validation: the last ones of
            every class, by the clean labels.
        labels: "clean", or those of CIFAR-10N for training and validation: "aggregate" (majority of three people),
            "worst" (a wrong one where any is wrong), "random1", "random2" or "random3" (one person's).
        human_labels: True to insist on the extras (with download, CIFAR-10H is fetched), False to leave them out; by
            default they are there if their files are.
        zero_shot: True to split by class: training and validation images are those of the first five classes, test
            images those of the last five. Classes keep their labels, 0 to 4 and 5 to 9.
    """
    if labels != "clean" and labels not in _KEYS:
        raise ValueError(f"labels is {labels!r}; it must be one of: clean, {', '.join(_KEYS)}")
    if labels != "clean" and request.split is Split.TEST:
        raise ValueError(f"CIFAR-10N has no labels for test images, so labels={labels!r} is for the others")
    if labels != "clean" and zero_shot:
        raise ValueError(
            f"labels={labels!r} has training images of the first five classes that are named as one of the last five, "
            "which zero_shot keeps for testing: leave one of the two out"
        )
    names = _TEST if request.split is Split.TEST else _TRAIN
    folder = request.find(
        (_FOLDER, "."),
        [(name,) for name in (*_TRAIN, *_TEST)],
        lambda target: request.fetch_and_unpack(URL, target, _FOLDER, MD5),
    )
    batches = [read_cifar_batch(folder / name) for name in names]
    images = np.concatenate([batch[0] for batch in batches])
    clean = np.concatenate([batch[1] for batch in batches])
    extras: dict[str, torch.Tensor] = {}
    if human_labels is not False or labels != "clean":
        required = human_labels is True or labels != "clean"
        reader = _read_h if request.split is Split.TEST else _read_n
        extras = reader(request, folder, clean, required)
    content = _content(images, clean, request.split, held_out, extras, zero_shot)
    if labels == "clean":
        return content
    chosen = content.extras[f"{labels}_label"].numpy()
    return Content(content.images, chosen, CLASSES, content.indices, content.extras)


def _content(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    split: Split,
    held_out: int,
    extras: dict[str, torch.Tensor],
    zero_shot: bool,
) -> Content:
    """One split of the published training or test images; indices are positions among all of these."""
    if not zero_shot:
        return array_content(images, labels, split, CLASSES, held_out, extras)
    half = len(CLASSES) // 2
    own = np.flatnonzero(labels >= half if split is Split.TEST else labels < half)
    chosen = {name: values[torch.from_numpy(own)] for name, values in extras.items()}
    content = array_content(images[own], labels[own], split, CLASSES, held_out, chosen)
    return replace(content, indices=own[content.indices])


def _beside(request: Request, folder: Path, name: str, where: str, required: bool) -> Path | None:
    """A file of human labels, in a data folder or beside the images."""
    places = (*request.folders, folder, folder.parent)
    file = next((place / name for place in places if (place / name).is_file()), None)
    if file is None and required:
        raise MissingDataError(f"{name} was not found in {', '.join(map(str, places))}; {where}")
    return file


def _read_n(
    request: Request, folder: Path, clean: npt.NDArray[np.int64], required: bool
) -> dict[str, torch.Tensor]:
    path = _beside(request, folder, _CIFAR10N, _WHERE_N, required)
    if path is None:
        return {}
    arrays = read_npz(path, ("clean_label", *_KEYS.values()))
    for key, values in arrays.items():
        if values.shape != clean.shape:
            raise CorruptFileError(
                f"{path} has {values.shape} entries of {key} for {clean.size} training images"
            )
        if values.min() < 0 or values.max() > 9:
            raise CorruptFileError(f"{path} has labels from {values.min()} to {values.max()} in {key}")
    if not np.array_equal(arrays["clean_label"], clean):
        raise CorruptFileError(f"the clean labels of {path} are not those of {folder}; the orders differ")
    extras = {f"{name}_label": torch.from_numpy(arrays[key].astype(np.int64)) for name, key in _KEYS.items()}
    extras["human_labels"] = torch.stack([extras[f"random{person}_label"] for person in (1, 2, 3)], dim=1)
    return extras


def _read_h(
    request: Request, folder: Path, clean: npt.NDArray[np.int64], required: bool
) -> dict[str, torch.Tensor]:
    path = _beside(request, folder, _CIFAR10H, _WHERE_H, required and not request.download)
    if path is None and required:
        path = request.fetch(URL_H, request.folders[0] / _CIFAR10H)
    if path is None:
        return {}
    shares = read_npy(path)
    if shares.shape != (clean.size, 10):
        raise CorruptFileError(f"{path} has the shape {shares.shape}; {(clean.size, 10)} is expected")
    if shares.min() < 0 or not np.allclose(shares.sum(axis=1), 1.0, atol=1e-6):
        raise CorruptFileError(f"{path} holds rows that are no probabilities")
    return {"human_distribution": torch.from_numpy(shares.astype(np.float64))}
