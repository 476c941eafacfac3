"""Items around a few centres, for the tests of indexes."""

from __future__ import annotations

import numpy as np

from laplacian_metric.retrieval.items import Items

SOURCE = "5e1f" * 16


def unit(values: np.ndarray) -> np.ndarray:
    return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float32)


def clusters(
    count: int,
    dim: int = 8,
    *,
    centres: int = 12,
    seed: int = 0,
    spread: float = 0.3,
    variance: bool = False,
    source: str = SOURCE,
) -> tuple[Items, np.ndarray]:
    """Items and their classes; the centres are the same for every seed."""
    generator = np.random.default_rng(seed)
    middle = np.random.default_rng(99).normal(size=(centres, dim))
    labels = generator.integers(centres, size=count)
    mean = unit(unit(middle[labels]) + spread * generator.normal(size=(count, dim)))
    kappa = np.exp(generator.normal(3, 1.5, count)).astype(np.float32)
    raw = generator.random((count, dim)).astype(np.float32) if variance else None
    return Items(mean, kappa, 1 / kappa.astype(np.float64), raw, source), labels


def nothing_but(mean: np.ndarray, source: str = SOURCE) -> Items:
    """Items of which only the directions matter."""
    return Items(mean, np.ones(len(mean)), np.ones(len(mean)), None, source)
