"""The embedded part of Fashion-MNIST: 3,000 training and 1,000 test images that need no files."""

from __future__ import annotations

import dataclasses

from laplacian_metric.data.embedded import embedded_sample
from laplacian_metric.data.source import Content, Request
from laplacian_metric.data.sources import fashion_mnist
from laplacian_metric.data.sources.shared import array_content
from laplacian_metric.data.splits import Split

INFO = dataclasses.replace(
    fashion_mnist.INFO,
    name="sample-fashion-mnist",
    title="the embedded sample of Fashion-MNIST",
    layout="no files: it is installed with the package",
    obtain="",
)


def read(request: Request, held_out: int = 500) -> Content:
    """Read a split; `indices` are positions among the images of the sample.

    Args:
        held_out: how many of the 3,000 training images are for validation: the last ones of every class.
    """
    sample = embedded_sample("fashion-mnist", "test" if request.split is Split.TEST else "train")
    return array_content(
        sample.images.numpy(),
        sample.labels.numpy(),
        request.split,
        sample.class_names,
        held_out,
        {"original_index": sample.indices},
    )
