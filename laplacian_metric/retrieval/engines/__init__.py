"""Vector databases as engines: items in memory, FAISS, Qdrant or Milvus, with `Trust` on top of what they return.

Nothing here imports torch, and the clients of databases are imported when one of them is used.

Example:
    >>> import numpy as np
    >>> from laplacian_metric.retrieval import Items, engines
    >>> items = Items(np.eye(3), kappa=[10, 20, 30], uncertainty=[0.1, 0.05, 0.03], variance=None, source="a4f0")
    >>> collection = engines.create("exact:", items, ["ant", "bee", "cat"], columns={"legs": [6, 6, 4]})
    >>> collection.query(items[:1], k=1, where={"legs": 4}).ids.tolist()
    [['cat']]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laplacian_metric.retrieval.engines.addresses import create, open_engine
    from laplacian_metric.retrieval.engines.arrays import ArrayEngine
    from laplacian_metric.retrieval.engines.collection import Collection
    from laplacian_metric.retrieval.engines.conversion import from_index
    from laplacian_metric.retrieval.engines.engine import (
        ChangedCollectionError,
        Engine,
        EngineError,
        EngineNeighbours,
        EngineUnreachableError,
        NoItemError,
        Records,
        Where,
    )
    from laplacian_metric.retrieval.engines.engine_gallery import EngineGallery
    from laplacian_metric.retrieval.engines.fingerprint import Fingerprint
    from laplacian_metric.retrieval.engines.milvus import MilvusEngine
    from laplacian_metric.retrieval.engines.qdrant import QdrantEngine
    from laplacian_metric.retrieval.engines.storage import load, save

_HOMES = {
    "addresses": ("create", "open_engine"),
    "arrays": ("ArrayEngine",),
    "collection": ("Collection",),
    "conversion": ("from_index",),
    "engine": (
        "ChangedCollectionError",
        "Engine",
        "EngineError",
        "EngineNeighbours",
        "EngineUnreachableError",
        "NoItemError",
        "Records",
        "Where",
    ),
    "engine_gallery": ("EngineGallery",),
    "fingerprint": ("Fingerprint",),
    "milvus": ("MilvusEngine",),
    "qdrant": ("QdrantEngine",),
    "storage": ("load", "save"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ArrayEngine",
    "ChangedCollectionError",
    "Collection",
    "Engine",
    "EngineError",
    "EngineGallery",
    "EngineNeighbours",
    "EngineUnreachableError",
    "Fingerprint",
    "MilvusEngine",
    "NoItemError",
    "QdrantEngine",
    "Records",
    "Where",
    "create",
    "from_index",
    "load",
    "open_engine",
    "save",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
