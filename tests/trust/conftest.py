"""What the tests of Trust have in common: clusters with labels, and their galleries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray


class Clusters(NamedTuple):
    """Features (N, H) and labels (N,) of a gallery, of validation queries and of test queries."""

    gallery: tuple[NDArray[np.float64], NDArray[np.int64]]
    queries: tuple[NDArray[np.float64], NDArray[np.int64]]
    test: tuple[NDArray[np.float64], NDArray[np.int64]]


def clusters(seed: int = 0, num: int = 900, classes: int = 4, dim: int = 8, noise: float = 0.4) -> Clusters:
    """Return Gaussian clusters around the first axes: a third in each part."""
    generator = np.random.default_rng(seed)
    labels = np.arange(num) % classes
    h = np.eye(dim)[labels] + noise * generator.standard_normal((num, dim))
    third = num // 3
    return Clusters(
        *((h[k * third : (k + 1) * third], labels[k * third : (k + 1) * third]) for k in range(3))
    )


@pytest.fixture(scope="session")
def some() -> Clusters:
    return clusters()
