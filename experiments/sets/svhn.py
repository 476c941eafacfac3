"""SVHN: digits of house numbers out of street views, 32 x 32 (the cropped format)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.sets.readers import CorruptFileError, read_mat
from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.mnist import DIGITS
from experiments.sets.shared import array_content
from laplacian_metric.data.splits import Split

INFO = DataSetInfo(
    name="svhn",
    title="SVHN (cropped digits)",
    layout="train_32x32.mat and test_32x32.mat, in the data folder or in svhn/",
    page="http://ufldl.stanford.edu/housenumbers/",
    obtain="torchvision.datasets.SVHN(folder, split, download=True) gets it too",
    licence="for non-commercial use only",
    citation="Netzer, Wang, Coates, Bissacco, Wu, Ng: Reading Digits in Natural Images with Unsupervised Feature "
    "Learning, 2011",
)

URL = "http://ufldl.stanford.edu/housenumbers/"
CHECKSUMS = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}


def read(request: Request, held_out: int = 5000) -> Content:
    """Read a split.

    Args:
        held_out: how many of the 73,257 training images are for validation: the last ones of every class.
    """
    name = "test_32x32.mat" if request.split is Split.TEST else "train_32x32.mat"

    def get(folder: Path) -> None:
        request.fetch(URL + name, folder / "svhn" / name, CHECKSUMS[name])

    path = request.find(("svhn", "SVHN", "."), [(name,)], get) / name
    arrays = read_mat(path, ("X", "y"))
    # One image is squeezed away, and comes back here.
    images = arrays["X"].reshape(*arrays["X"].shape[:3], -1)
    labels = np.atleast_1d(arrays["y"]).astype(np.int64)
    if images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8:
        raise CorruptFileError(f"{path}: X must be uint8 (32, 32, 3, N), not {images.dtype} {images.shape}")
    if images.shape[3] != labels.size:
        raise CorruptFileError(f"{path} has {images.shape[3]} images but {labels.size} labels")
    if labels.min() < 1 or labels.max() > 10:
        raise CorruptFileError(
            f"{path} has labels from {labels.min()} to {labels.max()}, expected are 1 to 10"
        )
    # The files call the digit 0 by the label 10.
    return array_content(images.transpose(3, 2, 0, 1), labels % 10, request.split, DIGITS, held_out)
