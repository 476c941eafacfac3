"""A collection of Milvus: milvus-lite in a file, a server, or a cluster; its index by "#HNSW" behind the address."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.gallery import LONGEST_ID, LONGEST_TEXT, Checked, Fields, Kinds
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
    rows_of,
)

WORD = re.compile(  # of filters: columns of such names are stored as "like_"
    r"like|in|not|and|or|is|null|exists|true|false|iso|interval|random_sample|\w+_match|(array|json)_\w+",
    re.IGNORECASE,
)
METRIC_OF = {"COSINE": "cosine", "L2": "l2", "IP": "dot"}
MOST_HITS = 16_384  # of one search
FLUSHED_AFTER = 10_000  # rows that milvus-lite keeps outside of its segments, where searches are slow
SECONDS = 60
ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}


class MilvusGallery(EngineGallery):
    """A collection of Milvus."""

    engine = "Milvus"
    batch = 10_000

    def _open(self, place: str) -> None:
        self._milvus = client_of("pymilvus", "milvus")
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are raised
        logging.getLogger("grpc._server").addFilter(_is_news)
        self._in_file = "://" not in place
        uri, user, password = (place, "", "") if self._in_file else credentials(place)
        self.client = self._milvus.MilvusClient(uri, user=user, password=password, timeout=SECONDS)
        self._unflushed = 0

    def _describe(self) -> Description | None:
        name = self.fields.name
        if not self.client.has_collection(name, timeout=SECONDS):
            return None
        described = self.client.describe_collection(name, timeout=SECONDS)
        fields = {field["name"]: field for field in described["fields"]}
        types = self._milvus.DataType
        kind_of = dict.fromkeys(
            (types.INT8, types.INT16, types.INT32, types.INT64, types.FLOAT, types.DOUBLE), "number"
        )
        kind_of |= {types.VARCHAR: "text", types.BOOL: "bool"}
        kinds = {field: kind_of[value["type"]] for field, value in fields.items() if value["type"] in kind_of}
        if not fields.get(self.fields.id, {}).get("is_primary") or self.fields.vector not in fields:
            raise WrongFieldError(
                f"id is {self.fields.id!r}, vector is {self.fields.vector!r}: {name!r} has {sorted(fields)}, and "
                "ids are its primary key"
            )
        self._labelled = self.fields.label in kinds
        index = self.client.describe_index(name, self.fields.vector, timeout=SECONDS)
        self._kind = str(index.get("index_type"))
        metric = METRIC_OF.get(str(index.get("metric_type")), str(index.get("metric_type")))
        self.client.load_collection(name, timeout=SECONDS)
        others = {
            (field[:-1] if field == _field(field[:-1]) else field): kind
            for field, kind in kinds.items()
            if field not in (self.fields.id, self.fields.label)
        }
        found = Kinds(kinds[self.fields.id], kinds.get(self.fields.label), others)
        return Description(int(fields[self.fields.vector]["params"]["dim"]), metric, found)

    def _create(self, dim: int, kinds: Kinds) -> None:
        types, client = self._milvus.DataType, self._milvus.MilvusClient
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)

        def add(
            name: str, kind: str, whole: Any = types.INT64, longest: int = LONGEST_TEXT, **more: Any
        ) -> None:
            if kind == "text":
                schema.add_field(name, types.VARCHAR, max_length=longest, **more)
            else:
                schema.add_field(name, types.BOOL if kind == "bool" else whole, **more)

        add(self.fields.id, kinds.ids, longest=LONGEST_ID, is_primary=True)
        if kinds.labels is not None:
            add(self.fields.label, kinds.labels)
        for name, kind in kinds.columns.items():
            add(_field(name), kind, whole=types.DOUBLE)
        schema.add_field(self.fields.vector, types.FLOAT_VECTOR, dim=dim)
        indexes = client.prepare_index_params()
        params: dict[str, Any] = dict(self.index_options)
        if self._in_file and params:  # milvus-lite reads them from "params", pymilvus sends them one by one
            params |= {"params": json.dumps(params)}
        indexes.add_index(
            self.fields.vector, metric_type="COSINE", index_type=self.index or "FLAT", params=params
        )
        self.client.create_collection(
            self.fields.name, schema=schema, index_params=indexes, consistency_level="Strong", timeout=SECONDS
        )
        self._describe()

    def _check_kinds(self, items: Checked) -> None:
        super()._check_kinds(items)
        for id_ in items.ids.tolist() if items.kinds.ids == "text" else ():
            if '"' in id_ or "\\" in id_:
                raise ValueError(
                    f"ids has {id_!r}: Milvus takes texts without quotation marks and backslashes"
                )

    def _put(self, batch: Batch) -> None:
        columns = {_field(name): values for name, values in batch.columns.items()}
        rows = rows_of({self.fields.id: batch.ids, self.fields.vector: list(batch.vectors), **columns})
        self.client.upsert(self.fields.name, rows, timeout=SECONDS)
        self._unflushed += len(rows)
        if self._in_file and self._unflushed >= FLUSHED_AFTER:
            self.client.flush(self.fields.name, timeout=SECONDS)
            self._unflushed = 0

    def _delete(self, ids: list[Any]) -> None:
        self.client.delete(self.fields.name, filter=self._expression([], among=ids), timeout=SECONDS)

    def _hits(self, queries: NDArray[np.float32], k: int, filters: Filters, native: Native) -> list[Hits]:
        if k > MOST_HITS:
            raise ValueError(f"k is {k}: Milvus returns at most {MOST_HITS} items")
        depth = {"HNSW": {"ef": max(100, 2 * k)}, "IVF_FLAT": {"nprobe": 16}}.get(self._kind, {})
        options = {name: value for name, value in native.items() if name != "filter"}
        found = self.client.search(
            self.fields.name,
            data=list(queries),
            anns_field=self.fields.vector,
            limit=k,
            filter=self._expression(filters, native.get("filter")),
            output_fields=self._columns(),
            search_params={"params": {**depth, **options}},
            timeout=SECONDS,
        )
        return [
            self._as_hits([{**hit["entity"], self.fields.id: hit[self.fields.id]} for hit in hits])
            for hits in found
        ]

    def _columns(self) -> list[str]:
        return [self.fields.id, self.fields.vector, *([self.fields.label] if self._labelled else [])]

    def _as_hits(self, rows: list[Any]) -> Hits:
        vectors = [row.get(self.fields.vector) for row in rows]
        labels = [row.get(self.fields.label) for row in rows] if self._labelled else None
        return Hits([row[self.fields.id] for row in rows], vectors, labels)

    def _expression(self, filters: Filters, native: str | None = None, among: list[Any] | None = None) -> str:
        parts = [] if native is None else [f"({native})"]
        named = [(_field(name), values) for name, values in filters]
        for name, values in [*named, *([] if among is None else [(self.fields.id, among)])]:
            literals = [_quoted(value) if isinstance(value, str) else json.dumps(value) for value in values]
            parts.append(f"{name} in [{', '.join(literals)}]")
        return " and ".join(parts)

    def _read(self, filters: Filters, among: list[Any] | None, vectors: bool) -> Hits:
        options = {
            "filter": self._expression(filters, among=among),
            "output_fields": self._columns() if vectors else [self.fields.id],
            "timeout": SECONDS,
        }
        if among is not None:
            return self._as_hits(self.client.query(self.fields.name, limit=len(among), **options))
        iterator = self.client.query_iterator(self.fields.name, batch_size=self.batch, **options)
        rows: list[Any] = []
        try:
            while page := iterator.next():
                rows += page
        finally:
            iterator.close()
        return self._as_hits(rows)

    def _count(self, filters: Filters) -> int:
        found = self.client.query(
            self.fields.name, filter=self._expression(filters), output_fields=["count(*)"], timeout=SECONDS
        )
        return int(found[0]["count(*)"])

    def close(self) -> None:
        """Close the client; a file of milvus-lite can then be opened again."""
        self.client.close()


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for what milvus-lite logs whenever items are read: it has no clock of a server."""
    return record.exc_info is None or record.exc_info[0] is not NotImplementedError


def _field(column: str) -> str:
    return column + "_" if WORD.fullmatch(column) else column


def _quoted(text: str) -> str:
    return '"' + "".join(ESCAPED.get(character, character) for character in text) + '"'


def open_address(address: str, dim: int | None, fields: Fields) -> MilvusGallery:
    """Return the gallery for "milvus:FILE.db" or "milvus:https://user:password@host:19530"."""
    return MilvusGallery(address, dim, fields)
