"""Qdrant as an engine: its local mode in memory or in a folder, a server, or a cluster, by one URL."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from laplacian_metric.core.vector_search import FARTHEST
from laplacian_metric.retrieval.engines.engine import (
    ID,
    LABEL,
    NUMBERS,
    ROWS_AT_ONCE,
    Columns,
    Engine,
    EngineError,
    EngineUnreachableError,
    Floats,
    Hit,
    Records,
    Where,
    columns_of,
    module_of,
    plain,
    rows_of,
)
from laplacian_metric.retrieval.items import Ids, as_ids

MEMORY = ":memory:"
NAMESPACE = uuid.UUID("6f1a1f5e-6f0c-5f5b-9f63-3c6f1f2f8f11")  # of the points whose ids are text
OWN = [ID, LABEL, *NUMBERS]


class QdrantEngine(Engine):
    """A collection of Qdrant with the named vectors "z" and "h".

    Points are numbered by their ids; text becomes a UUID, and stays in the payload as "id".

    Args:
        place: ":memory:", a folder, or the URL of a server or of a cluster.
        collection: its name.
        exact: have a server look at every item, instead of walking its graph. The local mode always does.
        options: passed on to `qdrant_client.QdrantClient`, for instance ``api_key``.
    """

    name = "qdrant"

    def __init__(self, place: str, collection: str, *, exact: bool = False, **options: Any) -> None:
        self.place, self.collection = place, collection
        self._models = module_of("qdrant_client.models", "qdrant")
        client = module_of("qdrant_client", "qdrant").QdrantClient
        self.local = place == MEMORY or not urlsplit(place).scheme.startswith("http")
        self.exact = exact or self.local
        # Nothing in the local mode may run in two threads.
        self._lock = threading.RLock() if self.local else None
        with self._calling():
            if place == MEMORY:
                self.client = client(MEMORY, **options)
            elif self.local:
                self.client = client(path=place, force_disable_check_same_thread=True, **options)
            else:
                self.client = client(url=place, **options)
            existing = self.client.collection_exists(collection)
        self.dims, self.text_ids = {}, False
        if existing:
            with self._calling():
                config = self.client.get_collection(collection).config.params.vectors
                first, _ = self.client.scroll(collection, limit=1, with_payload=[ID])
            self.dims = {space: int(config[space].size) for space in ("z", "h") if space in config}
            self.text_ids = bool(first) and isinstance((first[0].payload or {}).get(ID), str)

    def create(
        self, dims: Mapping[str, int], *, text_ids: bool, overwrite: bool = False, **options: Any
    ) -> None:
        """Make the collection.

        Args:
            dims: of each space.
            text_ids: whether ids are text.
            overwrite: drop a collection of this name.
            options: passed on to ``create_collection``, for instance ``hnsw_config`` or ``shard_number``.
        """
        models = self._models
        with self._calling():
            if self.client.collection_exists(self.collection):
                if not overwrite:
                    raise EngineError(
                        f"the collection {self.collection!r} exists: pass overwrite=True to replace it, or name another"
                    )
                self.client.delete_collection(self.collection)
            vectors = {
                s: models.VectorParams(size=d, distance=models.Distance.COSINE) for s, d in dims.items()
            }
            self.client.create_collection(self.collection, vectors_config=vectors, **options)
        self.dims, self.text_ids = dict(dims), text_ids

    @property
    def address(self) -> str:
        return f"{self.name}:{self.place}"

    def count(self, where: Where | None = None) -> int:
        with self._calling():
            chosen = None if where is None else self._filter(where)
            return int(self.client.count(self.collection, count_filter=chosen, exact=True).count)

    def hits(self, space: str, directions: Floats, k: int, where: Where) -> list[list[Hit]]:
        models, chosen = self._models, self._filter(where)
        requests = [
            models.QueryRequest(
                query=direction,
                using=space,
                limit=k,
                filter=chosen,
                with_payload=OWN,
                params=None if self.local else models.SearchParams(exact=self.exact),
            )
            for direction in directions.tolist()
        ]
        with self._calling():
            responses = self.client.query_batch_points(self.collection, requests=requests)
        return [
            [
                Hit(payload.get(ID, point.id), min(1 - point.score, FARTHEST), payload)
                for point in response.points
                for payload in [point.payload or {}]
            ]
            for response in responses
        ]

    def put(self, records: Records) -> None:
        for start in range(0, len(records), ROWS_AT_ONCE):
            some = records[start : start + ROWS_AT_ONCE]
            batch = self._models.Batch(
                ids=self._points(some.ids),
                vectors={space: vectors.tolist() for space, vectors in some.vectors.items()},
                payloads=[payload for _, payload in rows_of(some, payload_id=True)],
            )
            with self._calling():
                self.client.upsert(self.collection, points=batch, wait=True)

    def delete(self, ids: Ids) -> None:
        with self._calling():
            self.client.delete(
                self.collection,
                points_selector=self._models.PointIdsList(points=self._points(ids)),
                wait=True,
            )

    def update(self, ids: Ids, columns: Columns) -> None:
        models = self._models
        rows = rows_of(Records(ids, {}, columns))
        operations = [
            models.SetPayloadOperation(set_payload=models.SetPayload(payload=payload, points=[point]))
            for point, (_, payload) in zip(self._points(ids), rows, strict=True)
        ]
        for start in range(0, len(operations), ROWS_AT_ONCE):
            with self._calling():
                some = operations[start : start + ROWS_AT_ONCE]
                self.client.batch_update_points(self.collection, update_operations=some, wait=True)

    def read(self, ids: Ids, spaces: Sequence[str] = ()) -> Records:
        wanted = as_ids(ids)
        points: list[Any] = []
        for start in range(0, len(wanted), ROWS_AT_ONCE):
            with self._calling():
                points += self.client.retrieve(
                    self.collection,
                    self._points(wanted[start : start + ROWS_AT_ONCE]),
                    with_payload=OWN,
                    with_vectors=list(spaces),
                )
        place = {name: row for row, name in enumerate(wanted.tolist())}
        return self._records(sorted(points, key=lambda point: place[point.payload[ID]]), spaces)

    def scroll(self, spaces: Sequence[str] = ()) -> Iterator[Records]:
        offset = None
        while True:
            with self._calling():
                points, offset = self.client.scroll(
                    self.collection,
                    limit=ROWS_AT_ONCE,
                    offset=offset,
                    with_payload=OWN,
                    with_vectors=list(spaces),
                )
            if points:
                yield self._records(points, spaces)
            if offset is None:
                return

    def close(self) -> None:
        """Close the client; a folder of the local mode can then be opened again."""
        self.client.close()

    def _records(self, points: list[Any], spaces: Sequence[str]) -> Records:
        payloads = [point.payload or {} for point in points]
        ids = as_ids([payload.get(ID, point.id) for point, payload in zip(points, payloads, strict=True)])
        vectors = {
            space: np.array([point.vector[space] for point in points], dtype=np.float32).reshape(
                len(points), self.dims[space]
            )
            for space in spaces
        }
        return Records(ids, vectors, columns_of(payloads))

    def _points(self, ids: Ids) -> list[Any]:
        if ids.dtype.kind == "U":
            return [str(uuid.uuid5(NAMESPACE, name)) for name in ids.tolist()]
        if len(ids) and ids.min() < 0:
            raise EngineError(f"ids has {ids.min()}: Qdrant takes numbers from 0 up, or pass ids as text")
        numbers: list[Any] = ids.tolist()
        return numbers

    def _filter(self, where: Where) -> Any:
        models = self._models
        if where.everything:
            return None
        if where.native is not None and not isinstance(where.native, models.Filter):
            raise EngineError(
                f"the filter is a {type(where.native).__name__}: pass values by column, or a "
                "qdrant_client.models.Filter"
            )
        must = [] if where.native is None else [where.native]
        must += [
            models.FieldCondition(key=name, match=models.MatchAny(any=list(values)))
            if not isinstance(values[0], bool)
            else models.FieldCondition(key=name, match=models.MatchValue(value=values[0]))
            for name, values in where.equals.items()
        ]
        must_not = []
        if where.other_label is not None:
            match = models.MatchValue(value=plain(where.other_label))
            must_not = [models.FieldCondition(key=LABEL, match=match)]
        return models.Filter(must=must, must_not=must_not)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Call the client, one thread at a time where it needs that; its errors become ours."""
        errors = module_of("qdrant_client.http.exceptions", "qdrant")
        if self._lock is not None:
            self._lock.acquire()
        try:
            yield
        except (errors.ApiException, ConnectionError, OSError) as error:
            raise EngineUnreachableError(f"Qdrant at {self.place} does not answer: {error}") from error
        except (RuntimeError, KeyError) as error:
            raise EngineError(f"Qdrant at {self.place}: {error}") from error
        finally:
            if self._lock is not None:
                self._lock.release()
