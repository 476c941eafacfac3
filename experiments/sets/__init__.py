"""Published data sets: importing this package makes them known to `laplacian_metric.data.load` by name."""

from __future__ import annotations

from experiments.sets import (
    cars,
    cifar10,
    cifar100,
    cub,
    lfw,
    mnist,
    msls,
    n_digit_mnist,
    omniglot,
    pets,
    products,
    quickdraw,
    svhn,
)
from experiments.sets.lookup import MissingDataError, cache_folder, data_folders
from laplacian_metric.data import register

__all__ = ["MissingDataError", "cache_folder", "data_folders"]

for module in (
    cars,
    cifar10,
    cifar100,
    cub,
    lfw,
    mnist,
    msls,
    n_digit_mnist,
    omniglot,
    pets,
    products,
    quickdraw,
    svhn,
):
    register(module.INFO, module.read)
register(cars.CROPS, cars.read_crops)
register(lfw.GRAY, lfw.read_gray)
register(mnist.FASHION, mnist.read_fashion)
register(svhn.FIRST, svhn.read_first)
