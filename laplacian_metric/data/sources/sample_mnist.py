"""The embedded part of MNIST: 1,000 test images that need no files, to serve as data from elsewhere."""

from __future__ import annotations

import dataclasses

from laplacian_metric.data.embedded import embedded_sample
from laplacian_metric.data.source import Content, Request
from laplacian_metric.data.sources import mnist
from laplacian_metric.data.sources.shared import array_content
from laplacian_metric.data.splits import Split

INFO = dataclasses.replace(
    mnist.INFO,
    name="sample-mnist",
    title="the embedded sample of MNIST",
    layout="no files: it is installed with the package",
    obtain="",
    splits=(Split.TEST,),
)


def read(request: Request) -> Content:
    """Read the test split; `indices` are positions among the images of the sample."""
    sample = embedded_sample("mnist", "test")
    return array_content(
        sample.images.numpy(),
        sample.labels.numpy(),
        request.split,
        sample.class_names,
        0,
        {"original_index": sample.indices},
    )
