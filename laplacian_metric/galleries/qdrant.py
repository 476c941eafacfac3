"""A collection of Qdrant: its local mode in memory or in a folder, a server, or a cluster by its URL."""

from __future__ import annotations

import threading
import uuid
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import kind_of
from laplacian_metric.core.gallery import Checked, Fields, Kinds
from laplacian_metric.galleries.engine import (
    Batch,
    Description,
    EngineGallery,
    Filters,
    Hits,
    Native,
    WrongFieldError,
    client_of,
    credentials,
    kinds_of,
    rows_of,
)

NAMESPACE = uuid.UUID("6f1a1f5e-6f0c-5f5b-9f63-3c6f1f2f8f11")  # of the points whose ids are texts
METRIC_OF = {"Cosine": "cosine", "Euclid": "l2", "Dot": "dot"}
LOOKED_AT = 100  # points by which kinds are known
SECONDS = 60


class QdrantGallery(EngineGallery):
    """A collection of Qdrant; ids stand in the payload, too, and name the points: texts by a UUID made of them."""

    engine = "Qdrant"

    def _open(self, place: str) -> None:
        self._models = client_of("qdrant_client.models", "qdrant")
        client = client_of("qdrant_client", "qdrant").QdrantClient
        local = not place.startswith("http")
        # Nothing in the local mode may run in two threads.
        self._turn: Any = threading.RLock() if local else nullcontext()
        if place in ("", ":memory:"):
            self.client = client(":memory:")
        elif local:
            self.client = client(path=place, force_disable_check_same_thread=True)
        else:
            url, _, key = credentials(place)
            self.client = client(url=url, api_key=key or None, timeout=SECONDS, check_compatibility=False)

    def _describe(self) -> Description | None:
        with self._turn:
            if not self.client.collection_exists(self.fields.name):
                return None
            vectors = self.client.get_collection(self.fields.name).config.params.vectors
            points, _ = self.client.scroll(self.fields.name, limit=LOOKED_AT, with_payload=True)
        self._vector = self.fields.vector if isinstance(vectors, dict) else ""
        if self._vector and self._vector not in vectors:
            raise WrongFieldError(f"vector is {self._vector!r}: {self.fields.name!r} has {sorted(vectors)}")
        config = vectors[self._vector] if self._vector else vectors
        payloads = [point.payload or {} for point in points]
        self._foreign = any(
            self.fields.id in payload and str(point.id) != str(_point(payload[self.fields.id]))
            for point, payload in zip(points, payloads, strict=True)
        )
        ids = [self._id_of(point) for point in points]
        metric = METRIC_OF.get(str(config.distance.value), str(config.distance.value))
        return Description(int(config.size), metric, kinds_of(ids, payloads, self.fields))

    def _create(self, dim: int, kinds: Kinds) -> None:
        config = self._models.VectorParams(size=dim, distance=self._models.Distance.COSINE)
        with self._turn:
            self.client.create_collection(self.fields.name, vectors_config={self.fields.vector: config})
        self._vector, self._foreign = self.fields.vector, False

    def _check_kinds(self, items: Checked) -> None:
        super()._check_kinds(items)
        if items.kinds.ids == "number" and items.ids.min() < 0:
            raise ValueError(f"ids has {items.ids.min()}: Qdrant takes whole numbers from 0 on, and texts")

    def _put(self, batch: Batch) -> None:
        payloads = rows_of({self.fields.id: batch.ids, **batch.columns})
        vectors = {self._vector: batch.vectors.tolist()} if self._vector else batch.vectors.tolist()
        points = self._models.Batch(ids=self._points(batch.ids), vectors=vectors, payloads=payloads)
        with self._turn:
            self.client.upsert(self.fields.name, points=points, wait=True)

    def _delete(self, ids: list[Any]) -> None:
        with self._turn:
            points = self._models.PointIdsList(points=self._points(ids))
            self.client.delete(self.fields.name, points_selector=points, wait=True)

    def _hits(self, queries: NDArray[np.float32], k: int, filters: Filters, native: Native) -> list[Hits]:
        options = {name: value for name, value in native.items() if name != "filter"}
        requests = [
            self._models.QueryRequest(
                query=query,
                using=self._vector or None,
                limit=k,
                filter=self._filter(filters, native.get("filter")),
                with_payload=[self.fields.id, self.fields.label],
                with_vector=[self._vector] if self._vector else True,
                params=self._models.SearchParams(**options),
            )
            for query in queries.tolist()
        ]
        with self._turn:
            responses = self.client.query_batch_points(self.fields.name, requests=requests)
        return [self._as_hits(response.points) for response in responses]

    def _as_hits(self, points: list[Any]) -> Hits:
        vectors = [
            point.vector.get(self._vector) if self._vector and point.vector else point.vector
            for point in points
        ]
        labels = [(point.payload or {}).get(self.fields.label) for point in points]
        return Hits([self._id_of(point) for point in points], vectors, labels)

    def _id_of(self, point: Any) -> Any:
        return (point.payload or {}).get(self.fields.id, point.id)

    def _points(self, ids: list[Any]) -> list[Any]:
        """Return how points of some ids are called; those of somebody else's collection are looked up."""
        if not self._foreign:
            return [_point(id_) for id_ in ids]
        there = {
            self._id_of(point): point.id for point in self._scroll(self._filter([(self.fields.id, ids)]))
        }
        return [there.get(id_, _point(id_)) for id_ in ids]

    def _filter(self, filters: Filters, native: Any = None, points: list[Any] | None = None) -> Any:
        models = self._models
        must = [] if native is None else [native]
        if points is not None:
            must.append(models.HasIdCondition(has_id=points))
        for name, values in filters:
            if kind_of(values) == "text":
                must.append(models.FieldCondition(key=name, match=models.MatchAny(any=values)))
                continue
            matches = [
                models.FieldCondition(key=name, match=models.MatchValue(value=value))
                if isinstance(value, bool)
                else models.FieldCondition(key=name, range=models.Range(gte=value, lte=value))
                for value in values
            ]
            must.append(models.Filter(should=matches))
        return models.Filter(must=must) if must else None

    def _scroll(self, chosen: Any, vectors: bool = False) -> list[Any]:
        points: list[Any] = []
        offset = None
        while True:
            with self._turn:
                found, offset = self.client.scroll(
                    self.fields.name,
                    scroll_filter=chosen,
                    limit=10 * self.batch,
                    offset=offset,
                    with_payload=[self.fields.id, self.fields.label],
                    with_vectors=vectors,
                )
            points += found
            if offset is None:
                return points

    def _read(self, filters: Filters, among: list[Any] | None, vectors: bool) -> Hits:
        points = None if among is None else self._points(among)
        if points is None or filters:
            return self._as_hits(self._scroll(self._filter(filters, points=points), vectors))
        payload = [self.fields.id, self.fields.label]
        with self._turn:
            return self._as_hits(
                self.client.retrieve(self.fields.name, points, payload, with_vectors=vectors)
            )

    def _count(self, filters: Filters) -> int:
        with self._turn:
            return int(
                self.client.count(self.fields.name, count_filter=self._filter(filters), exact=True).count
            )

    def close(self) -> None:
        """Close the client; a folder of the local mode can then be opened again."""
        self.client.close()


def _point(id_: Any) -> Any:
    """Return how the point of an id is called: whole numbers as they are, UUIDs as well, other texts by a UUID."""
    if not isinstance(id_, str):
        return id_
    try:
        named = str(uuid.UUID(id_))
    except ValueError:
        named = ""
    return id_ if named == id_ else str(uuid.uuid5(NAMESPACE, id_))


def open_address(address: str, dim: int | None, fields: Fields) -> QdrantGallery:
    """Return the gallery for "qdrant:", "qdrant:FOLDER" or "qdrant:https://:key@host:6333"."""
    return QdrantGallery(address, dim, fields)
