"""Engines by one address: "exact:", "faiss:hnsw", "qdrant:URL" or "milvus:URI"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from laplacian_metric.retrieval.engines.arrays import ArrayEngine
from laplacian_metric.retrieval.engines.engine import LABEL, Engine, EngineError, Records
from laplacian_metric.retrieval.engines.fingerprint import Fingerprint
from laplacian_metric.retrieval.gallery import Kind
from laplacian_metric.retrieval.items import GivenIds, Items, as_ids, check_unique, is_text

if TYPE_CHECKING:
    from laplacian_metric.retrieval.engines.collection import Collection

NAMES = ("exact", "faiss", "qdrant", "milvus")
COLLECTION = "laplacian_metric"


def parse_address(address: str) -> tuple[str, str]:
    """Return the name of an engine and its place.

    Example:
        >>> parse_address("qdrant:http://localhost:6333"), parse_address("faiss:hnsw"), parse_address("exact:")
        (('qdrant', 'http://localhost:6333'), ('faiss', 'hnsw'), ('exact', ''))
    """
    name, _, place = address.partition(":")
    if name not in NAMES or (name in ("qdrant", "milvus") and not place):
        raise EngineError(
            f"{address!r} is no engine: write exact:, faiss:ivf, faiss:hnsw, qdrant:URL, qdrant:FOLDER, "
            "qdrant::memory:, milvus:URI or milvus:FILE.db"
        )
    return name, place


def open_engine(address: str, collection: str = COLLECTION, **options: Any) -> Engine:
    """Connect to a collection in Qdrant or Milvus.

    Args:
        address: "qdrant:" or "milvus:" and a URL, folder or file.
        collection: its name.
        options: passed on to `QdrantEngine` or `MilvusEngine`.
    """
    engine: Engine = _connected(address, collection, options)
    if not engine.dims:
        engine.close()
        raise EngineError(
            f"{address} has no collection {collection!r}: name one that exists, or create it by engines.create"
        )
    return engine


def _connected(address: str, collection: str, options: Mapping[str, Any]) -> Any:
    name, place = parse_address(address)
    if name == "qdrant":
        from laplacian_metric.retrieval.engines.qdrant import QdrantEngine

        return QdrantEngine(place, collection, **options)
    if name == "milvus":
        from laplacian_metric.retrieval.engines.milvus import MilvusEngine

        return MilvusEngine(place, collection, **options)
    raise EngineError(f"{address} keeps its items in memory: load the folder that save wrote")


def create(
    address: str,
    items: Items,
    ids: GivenIds | None = None,
    *,
    features: Any = None,
    labels: Any = None,
    columns: Mapping[str, ArrayLike] | None = None,
    collection: str = COLLECTION,
    kind: str | Kind | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Collection:
    """Write items into a new collection.

    Args:
        address: "exact:", "faiss:ivf", "faiss:hnsw", or "qdrant:" or "milvus:" and a URL, folder or file.
        items: at least one; their directions are the space "z".
        ids: whole numbers or text, each once; by default 0 to N - 1.
        features: (N, H), the space "h", which `Trust` needs where an encoder has a head.
        labels: (N,) texts or whole numbers, which `Trust` and every calibration need.
        columns: further values (N,) by name, for filters.
        collection: its name.
        kind: how Milvus or FAISS search: "flat", "ivf", "hnsw", or `IVF(...)`, `HNSW(...)`.
        overwrite: replace a collection of this name.
        options: passed on to the engine's client, for instance ``api_key`` or ``token``.

    Example:
        >>> items = Items(np.eye(3), kappa=[10, 20, 30], uncertainty=[0.1, 0.05, 0.03], variance=None, source="a4f0")
        >>> create("faiss:hnsw", items, ["ant", "bee", "cat"], columns={"legs": [6, 6, 4]})
        Collection(3 items in faiss:hnsw, source 'a4f0')
    """
    from laplacian_metric.retrieval.engines.collection import Collection, records_of

    if len(items) == 0:
        raise EngineError("there are no items: a collection needs at least one")
    named = np.arange(len(items)) if ids is None else as_ids(ids)
    check_unique(named)
    records = records_of(items, named, features, labels, columns)
    name, place = parse_address(address)
    engine: Engine
    if name in ("exact", "faiss"):
        engine = ArrayEngine(records, kind or place or ("flat" if name == "exact" else "hnsw"))
    else:
        more = {"kind": kind} if name == "milvus" and kind is not None else {}
        engine = _made(_connected(address, collection, {**options, **more}), records, overwrite)
    return Collection(engine, items.source, labels is not None, Fingerprint.of(records))


def _made(engine: Any, records: Records, overwrite: bool) -> Engine:
    dims = {space: vectors.shape[1] for space, vectors in records.vectors.items()}
    more: dict[str, Any] = {}
    if engine.name == "milvus":
        labels = records.payload.get(LABEL)
        more = {
            "labels": None if labels is None else "text" if is_text(labels) else "numbers",
            "size": len(records),
        }
    try:
        engine.create(dims, text_ids=is_text(records.ids), overwrite=overwrite, **more)
    except BaseException:
        engine.close()
        raise
    engine.put(records)
    return cast(Engine, engine)
