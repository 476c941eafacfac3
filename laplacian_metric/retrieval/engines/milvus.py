"""Milvus as an engine: milvus-lite in a file, a server, or a cluster, by one URI."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

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
from laplacian_metric.retrieval.gallery import HNSW, IVF, Flat, Kind, as_kind
from laplacian_metric.retrieval.items import Ids, as_ids

LOGGERS = ("grpc._server", "pymilvus.client.iterator.query_iterator", "pymilvus.orm.iterator")
DEFAULT_LISTS = 128  # of Milvus, where a collection does not say how many
LONGEST_TEXT = 512  # bytes of ids and labels
MOST_HITS = 16384  # of one search, and rows of one page
MOST_UNFLUSHED = (
    10_000  # rows that milvus-lite keeps outside of its segments, where every search unpacks each of them
)
PAGE_BYTES = 8 << 20  # of vectors in one page


class MilvusEngine(Engine):
    """A collection of Milvus with the vector fields "z" and "h".

    Args:
        place: a file that ends with .db for milvus-lite, or the URI of a server or of a cluster.
        collection: its name.
        kind: how a new collection searches: "flat", "ivf" or "hnsw", or `IVF(...)` and `HNSW(...)`; that of an
            existing collection is read from it.
        options: passed on to `pymilvus.MilvusClient`, for instance ``token``.
    """

    name = "milvus"

    def __init__(self, place: str, collection: str, *, kind: str | Kind = "flat", **options: Any) -> None:
        self.place, self.collection, self.kind = place, collection, as_kind(kind)
        self._milvus = module_of("pymilvus", "milvus")
        self._in_file = "://" not in place
        if self._in_file:
            _quieten()
        with self._calling():
            self.client = self._milvus.MilvusClient(place, **options)
            existing = self.client.has_collection(collection)
        self.dims, self.text_ids, self.labelled, self.text_labels = {}, False, False, False
        self.lists, self._unflushed = DEFAULT_LISTS, 0
        if existing:
            self._describe()
        self.exact = isinstance(self.kind, Flat)

    def _describe(self) -> None:
        with self._calling():
            fields = {
                field["name"]: field for field in self.client.describe_collection(self.collection)["fields"]
            }
            index = self.client.describe_index(self.collection, "z")
            self.client.load_collection(self.collection)
        text = self._milvus.DataType.VARCHAR
        self.dims = {space: int(fields[space]["params"]["dim"]) for space in ("z", "h") if space in fields}
        self.text_ids = fields[ID]["type"] == text
        self.labelled = LABEL in fields
        kinds: dict[str, Kind] = {"FLAT": Flat(), "IVF_FLAT": IVF(), "HNSW": HNSW()}
        kind = kinds.get(str(index.get("index_type")))
        if kind is None:
            raise EngineError(
                f"the collection {self.collection!r} has the index {index.get('index_type')}: {', '.join(kinds)} are "
                "known"
            )
        if type(kind) is not type(self.kind):
            self.kind = kind
        parameters = {**index, **index.get("params", {})}  # a server returns them one by one
        self.lists = int(parameters.get("nlist", DEFAULT_LISTS))

    def create(
        self,
        dims: Mapping[str, int],
        *,
        text_ids: bool,
        labels: str | None,
        size: int = 0,
        overwrite: bool = False,
        **options: Any,
    ) -> None:
        """Make the collection.

        Args:
            dims: of each space.
            text_ids: whether ids are text.
            labels: "text", "numbers", or None where items have none.
            size: the number of items to come, by which the inverted lists are counted.
            overwrite: drop a collection of this name.
            options: passed on to ``create_collection``, for instance ``num_shards``.
        """
        types = self._milvus.DataType
        schema = self._milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=True)

        def text_or_number(name: str, text: bool, **more: Any) -> None:
            kind = (
                {"datatype": types.VARCHAR, "max_length": LONGEST_TEXT} if text else {"datatype": types.INT64}
            )
            schema.add_field(name, **kind, **more)

        text_or_number(ID, text_ids, is_primary=True)
        if labels is not None:
            text_or_number(LABEL, labels == "text")
        for name in NUMBERS:
            schema.add_field(name, types.FLOAT)
        indexes = self._milvus.MilvusClient.prepare_index_params()
        index = self._index(size)
        if self._in_file and "params" in index:
            # pymilvus sends the parameters one by one; milvus-lite reads them from "params" only.
            index["params"] |= {"params": json.dumps(index["params"])}
        for space, dim in dims.items():
            schema.add_field(space, types.FLOAT_VECTOR, dim=dim)
            indexes.add_index(space, metric_type="COSINE", **index)
        with self._calling():
            if self.client.has_collection(self.collection):
                if not overwrite:
                    raise EngineError(
                        f"the collection {self.collection!r} exists: pass overwrite=True to replace it, or name another"
                    )
                self.client.drop_collection(self.collection)
            self.client.create_collection(
                self.collection, schema=schema, index_params=indexes, consistency_level="Strong", **options
            )
        self.dims, self.text_ids, self.labelled = dict(dims), text_ids, labels is not None

    def _index(self, size: int) -> dict[str, Any]:
        if isinstance(self.kind, HNSW):
            params = {"M": self.kind.links, "efConstruction": self.kind.build_depth}
            return {"index_type": "HNSW", "params": params}
        if isinstance(self.kind, IVF):
            self.lists = self.kind.lists(max(size, 1))
            return {"index_type": "IVF_FLAT", "params": {"nlist": self.lists}}
        return {"index_type": "FLAT"}

    def _depth(self, k: int) -> dict[str, Any]:
        if isinstance(self.kind, HNSW):
            return {"params": {"ef": max(k, self.kind.search_depth)}}
        if isinstance(self.kind, IVF):
            return {"params": {"nprobe": self.kind.probes(self.lists)}}
        return {}

    @property
    def address(self) -> str:
        return f"{self.name}:{self.place}"

    @property
    def _columns(self) -> list[str]:
        return [*([LABEL] if self.labelled else []), *NUMBERS]

    def count(self, where: Where | None = None) -> int:
        expression = "" if where is None else self._expression(where)
        with self._calling():
            counted = self.client.query(self.collection, filter=expression, output_fields=["count(*)"])
        return int(counted[0]["count(*)"])

    def hits(self, space: str, directions: Floats, k: int, where: Where) -> list[list[Hit]]:
        if k > MOST_HITS:
            raise EngineError(f"{k} items are asked for: Milvus returns at most {MOST_HITS} for a query")
        with self._calling():
            answers = self.client.search(
                self.collection,
                data=directions.tolist(),
                anns_field=space,
                limit=k,
                filter=self._expression(where),
                output_fields=self._columns,
                search_params=self._depth(k),
            )
        return [
            [Hit(hit["id"], min(1 - hit["distance"], FARTHEST), dict(hit["entity"])) for hit in of_query]
            for of_query in answers
        ]

    def put(self, records: Records) -> None:
        missing = [name for name in NUMBERS if name not in records.payload]
        filled = {name: np.full(len(records), -1.0) for name in missing}
        whole = Records(records.ids, records.vectors, {**records.payload, **filled})
        for start in range(0, len(whole), ROWS_AT_ONCE):
            some = whole[start : start + ROWS_AT_ONCE]
            rows = [
                payload | {space: vectors[row] for space, vectors in some.vectors.items()}
                for row, (_, payload) in enumerate(rows_of(some, payload_id=True))
            ]
            with self._calling():
                self.client.insert(self.collection, rows)
            self._wrote(len(rows))

    def delete(self, ids: Ids) -> None:
        for some in self._portions(ids):
            with self._calling():
                self.client.delete(self.collection, ids=some)

    def update(self, ids: Ids, columns: Columns) -> None:
        rows = [payload for _, payload in rows_of(Records(ids, {}, columns), payload_id=True)]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            with self._calling():
                self.client.upsert(self.collection, rows[start : start + ROWS_AT_ONCE], partial_update=True)
        self._wrote(len(rows))

    def _wrote(self, number: int) -> None:
        """Have milvus-lite move rows into a segment where many were written; a server does so by itself."""
        self._unflushed += number
        if self._in_file and self._unflushed >= MOST_UNFLUSHED:
            with self._calling():
                self.client.flush(self.collection)
            self._unflushed = 0

    def read(self, ids: Ids, spaces: Sequence[str] = ()) -> Records:
        wanted = as_ids(ids)
        rows: list[Any] = []
        for some in self._portions(wanted):
            with self._calling():
                rows += self.client.query(
                    self.collection, ids=some, output_fields=[ID, *self._columns, *spaces]
                )
        place = {name: row for row, name in enumerate(wanted.tolist())}
        return self._records(sorted(rows, key=lambda row: place[row[ID]]), spaces)

    def scroll(self, spaces: Sequence[str] = ()) -> Iterator[Records]:
        # milvus-lite goes over all items for every page, so that few pages are needed.
        bytes_of_row = 4 * sum(self.dims[space] for space in spaces)
        page = max(ROWS_AT_ONCE, min(MOST_HITS, PAGE_BYTES // max(1, bytes_of_row)))
        with self._calling():
            iterator = self.client.query_iterator(
                self.collection, batch_size=page, output_fields=[ID, *self._columns, *spaces]
            )
        try:
            while True:
                with self._calling():
                    rows = iterator.next()
                if not rows:
                    return
                yield self._records(rows, spaces)
        finally:
            iterator.close()

    def close(self) -> None:
        """Close the client; a file of milvus-lite can then be opened again."""
        self.client.close()

    def _records(self, rows: Sequence[Mapping[str, Any]], spaces: Sequence[str]) -> Records:
        vectors = {
            space: np.array([row[space] for row in rows], dtype=np.float32).reshape(
                len(rows), self.dims[space]
            )
            for space in spaces
        }
        return Records(as_ids([row[ID] for row in rows]), vectors, columns_of(rows))

    @staticmethod
    def _portions(ids: Ids) -> list[list[Any]]:
        return [ids[start : start + ROWS_AT_ONCE].tolist() for start in range(0, len(ids), ROWS_AT_ONCE)]

    def _expression(self, where: Where) -> str:
        if where.native is not None and not isinstance(where.native, str):
            raise EngineError(
                f"the filter is a {type(where.native).__name__}: pass values by column, or an expression of Milvus"
            )
        parts = [] if where.native is None else [f"({where.native})"]
        for name, values in where.equals.items():
            if not name.isidentifier():
                raise EngineError(
                    f"the filter names {name!r}: names of columns are letters, digits and underscores"
                )
            parts.append(f"{name} in {json.dumps(list(values), ensure_ascii=False)}")
        if where.other_label is not None:
            parts.append(f"{LABEL} != {json.dumps(plain(where.other_label), ensure_ascii=False)}")
        return " and ".join(parts)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Call the client; its errors become ours."""
        errors = self._milvus.exceptions
        try:
            yield
        except (errors.MilvusUnavailableException, ConnectionError) as error:
            raise EngineUnreachableError(f"Milvus at {self.place} does not answer: {error}") from error
        except errors.MilvusException as error:
            raise EngineError(f"Milvus at {self.place}: {error}") from error


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for what milvus-lite logs whenever all items are read: it has no clock of a server."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is not NotImplementedError and "ts_by_request" not in record.funcName


def _quieten() -> None:
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _is_news not in logger.filters:
            logger.addFilter(_is_news)
