"""A collection of Chroma: in memory, in a folder, or on a server; always with its approximate index."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import kind_of
from laplacian_metric.core.gallery import Fields, Kinds
from laplacian_metric.galleries.engine import (
    Batch,
    Description,
    EngineGallery,
    Filters,
    Hits,
    Native,
    client_of,
    kinds_of,
    rows_of,
)

METRIC_OF = {"cosine": "cosine", "l2": "l2", "ip": "dot"}
LOOKED_AT = 100  # items by which kinds are known
SEARCH_DEPTH = 200  # ef_search of a new collection


class ChromaGallery(EngineGallery):
    """A collection of Chroma, whose ids are texts: whole numbers stand in the metadata, too, and come back as such."""

    engine = "Chroma"
    batch = 5000

    def _open(self, place: str) -> None:
        chromadb = client_of("chromadb", "chroma")
        # Embedded, a search beside a removal can return an item without its metadata.
        self._turn: Any = nullcontext() if place.startswith("http") else threading.RLock()
        settings = client_of("chromadb.config", "chroma").Settings(anonymized_telemetry=False)
        if place.startswith("http"):
            parts = urlsplit(place)
            host, port, ssl = parts.hostname or "", parts.port or 8000, parts.scheme == "https"
            headers = {"Authorization": f"Bearer {parts.password}"} if parts.password else None
            self.client: Any = chromadb.HttpClient(host, port, ssl=ssl, headers=headers, settings=settings)
        elif place in ("", ":memory:"):
            self.client = chromadb.EphemeralClient(settings=settings)
        else:
            self.client = chromadb.PersistentClient(place, settings=settings)
        self._errors = client_of("chromadb.errors", "chroma")

    @property
    def _collection(self) -> Any:
        if self.client is None:
            raise RuntimeError("the gallery is closed")
        return self.client.get_collection(self.fields.name, embedding_function=None)

    def _describe(self) -> Description | None:
        try:
            collection = self._collection
        except self._errors.NotFoundError:
            return None
        items = collection.get(limit=LOOKED_AT, include=["metadatas", "embeddings"])
        if not items["ids"]:
            return None
        self._whole = isinstance((items["metadatas"][0] or {}).get(self.fields.id), int)
        metric = METRIC_OF[(collection.configuration.get("hnsw") or {}).get("space", "l2")]
        metadatas = [metadata or {} for metadata in items["metadatas"]]
        ids = self._as_hits(items["ids"], None, None).ids
        return Description(len(items["embeddings"][0]), metric, kinds_of(ids, metadatas, self.fields))

    def _create(self, dim: int, kinds: Kinds) -> None:
        hnsw = {"space": "cosine", "ef_search": SEARCH_DEPTH, **self.index_options}
        self.client.get_or_create_collection(
            self.fields.name, configuration={"hnsw": hnsw}, embedding_function=None
        )
        self._whole = kinds.ids == "number"

    def _put(self, batch: Batch) -> None:
        metadatas = rows_of({**({self.fields.id: batch.ids} if self._whole else {}), **batch.columns})
        with self._turn:
            self._collection.upsert(
                [str(id_) for id_ in batch.ids], embeddings=batch.vectors, metadatas=metadatas or None
            )

    def _delete(self, ids: list[Any]) -> None:
        with self._turn:
            self._collection.delete([str(id_) for id_ in ids])

    def _hits(self, queries: NDArray[np.float32], k: int, filters: Filters, native: Native) -> list[Hits]:
        with self._turn:
            found = self._collection.query(
                query_embeddings=queries,
                n_results=k,
                where=_where(filters, native.get("filter")),
                include=["embeddings", "metadatas"],
                **{name: value for name, value in native.items() if name != "filter"},
            )
        parts = zip(found["ids"], found["embeddings"], found["metadatas"], strict=True)
        return [self._as_hits(*part) for part in parts]

    def _as_hits(self, ids: list[str], vectors: Any, metadatas: list[Any] | None) -> Hits:
        labels = [(metadata or {}).get(self.fields.label) for metadata in metadatas or ()]
        return Hits([int(id_) for id_ in ids] if self._whole else ids, vectors, labels)

    def _read(self, filters: Filters, among: list[Any] | None, vectors: bool) -> Hits:
        names = None if among is None else [str(id_) for id_ in among]
        include = ["embeddings", "metadatas"] if vectors else []
        with self._turn:
            found = self._collection.get(names, where=_where(filters), include=include)
        return self._as_hits(found["ids"], found["embeddings"], found["metadatas"])

    def _count(self, filters: Filters) -> int:
        return len(self._read(filters, None, vectors=False).ids) if filters else int(self._collection.count())

    def close(self) -> None:
        """Close the client; calls after it are errors."""
        self.client.close()
        self.client = None


def _where(filters: Filters, native: Any = None) -> Any:
    parts = [] if native is None else [native]
    for name, values in filters:
        matches: list[Any] = [{name: {"$in": values}}]
        if kind_of(values) == "number":  # Chroma takes 2 for 2.5, too, where whole numbers are stored
            whole = [int(value) for value in values if value == int(value)]
            others = [float(value) for value in values if value != int(value)]
            matches = [{name: {"$in": whole}}] if whole else []
            wrong = [int(value) for value in others]
            matches += [{"$and": [{name: {"$in": others}}, {name: {"$nin": wrong}}]}] if others else []
        parts.append(matches[0] if len(matches) == 1 else {"$or": matches})
    return {"$and": parts} if len(parts) > 1 else parts[0] if parts else None


def open_address(address: str, dim: int | None, fields: Fields) -> ChromaGallery:
    """Return the gallery for "chroma:", "chroma:FOLDER" or "chroma:http://host:8000"."""
    return ChromaGallery(address, dim, fields)
