"""MNIST: handwritten digits, 28 x 28."""

from __future__ import annotations

from pathlib import Path

from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.shared import find_idx, idx_content

INFO = DataSetInfo(
    name="mnist",
    title="MNIST",
    layout="MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte, gzipped or not",
    page="http://yann.lecun.com/exdb/mnist/",
    obtain="torchvision.datasets.MNIST(folder, download=True) gets it too",
    licence="CC BY-SA 3.0, Yann LeCun, Corinna Cortes, Christopher J.C. Burges",
    citation="LeCun, Cortes, Burges: The MNIST database of handwritten digits, 1998",
)

DIGITS = tuple(str(digit) for digit in range(10))
# The mirror that torchvision takes first.
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_BASES = ("MNIST/raw", "mnist")


def find(request: Request) -> Path:
    """The folder with MNIST's files; N-digit MNIST is made of them too."""
    return find_idx(request, _BASES, MIRROR, CHECKSUMS)


def read(request: Request, held_out: int = 5000) -> Content:
    """Read a split.

    Args:
        held_out: how many of the 60,000 training images are for validation: the last ones of every class.
    """
    return idx_content(find(request), request.split, DIGITS, held_out)
