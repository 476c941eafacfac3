"""The engines that are tested, and items to put into them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from laplacian_metric.core.labelled_gallery import Head
from laplacian_metric.retrieval import Items, engines

EXACT = ("exact:", "qdrant::memory:", "milvus:lite.db")
APPROXIMATE = ("faiss:hnsw", "faiss:ivf")
KEPT = ("exact:", "faiss:hnsw", "qdrant:folder", "milvus:lite.db")  # whose items outlive the process
_numbers = itertools.count()


def address_of(engine: str, folder: Path) -> str:
    """Return an engine's address below a folder; the test is skipped where the engine is not installed."""
    if engine.startswith("qdrant"):
        pytest.importorskip("qdrant_client", reason="Qdrant's client is not installed")
    if engine.startswith("milvus"):
        pytest.importorskip("pymilvus", reason="Milvus' client is not installed")
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    name, _, place = engine.partition(":")
    if place in ("folder", "lite.db"):
        return f"{name}:{folder / f'{next(_numbers)}-{place}'}"
    return engine


@dataclass(frozen=True, eq=False)
class Data:
    """Features with their classes, and the embeddings that a head makes of them."""

    h: NDArray[np.float32]
    labels: NDArray[Any]
    head: Head

    @property
    def items(self) -> Items:
        """Embeddings as items."""
        z = self.head.embed(self.h).unit(slice(None)).astype(np.float32)
        kappa = np.linspace(5, 50, len(z))
        return Items(z, kappa, 1 / kappa, None, "a4f0")

    def __getitem__(self, rows: Any) -> Data:
        return Data(self.h[rows], self.labels[rows], self.head)


def data(
    count: int, seed: int = 0, classes: int = 5, width: int = 12, dim: int = 6, spread: float = 0.45
) -> Data:
    """Return features around one centre for each class."""
    generator = np.random.default_rng(seed)
    codes = np.arange(count) % classes
    h = np.eye(width)[codes] + spread * generator.standard_normal((count, width))
    weight = np.random.default_rng(99).standard_normal((dim, width)) / width**0.5
    names = np.array([f"class {code}" for code in range(classes)])
    return Data(h.astype(np.float32), names[codes], Head(weight.astype(np.float32)))


def collection_of(engine: str, folder: Path, of: Data, **options: Any) -> engines.Collection:
    """Return a collection with features, labels and a column that filters use."""
    ids = options.pop("ids", [f"item {row}" for row in range(len(of.h))])
    return engines.create(
        address_of(engine, folder),
        of.items,
        ids,
        features=of.h,
        labels=of.labels,
        columns={"shop": np.arange(len(of.h)) % 3},
        **options,
    )
