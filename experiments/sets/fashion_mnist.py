"""Fashion-MNIST: articles of clothing, 28 x 28, ten classes."""

from __future__ import annotations

from laplacian_metric.data.source import Content, DataSetInfo, Request
from experiments.sets.shared import find_idx, idx_content

INFO = DataSetInfo(
    name="fashion-mnist",
    title="Fashion-MNIST",
    layout="FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte, gzipped or not",
    page="https://github.com/zalandoresearch/fashion-mnist",
    obtain="torchvision.datasets.FashionMNIST(folder, download=True) gets it too",
    licence="MIT, copyright 2017 Zalando SE",
    citation="Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning "
    "Algorithms, 2017",
)

CLASSES = (
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
MIRROR = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_BASES = ("FashionMNIST/raw", "fashion-mnist")


def read(request: Request, held_out: int = 5000) -> Content:
    """Read a split.

    Args:
        held_out: how many of the 60,000 training images are for validation: the last ones of every class.
    """
    folder = find_idx(request, _BASES, MIRROR, CHECKSUMS)
    return idx_content(folder, request.split, CLASSES, held_out)
