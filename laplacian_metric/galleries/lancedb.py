"""A table of LanceDB in a folder or an object store; an approximate index by "#IVF_HNSW_SQ" behind the address."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.gallery import Fields, Kinds
from laplacian_metric.galleries.engine import (
    Batch,
    Description,
    EngineGallery,
    Filters,
    Hits,
    Native,
    WrongFieldError,
    client_of,
)


class LancedbGallery(EngineGallery):
    """A table of LanceDB."""

    engine = "LanceDB"
    batch = 10_000

    def _open(self, place: str) -> None:
        self._arrow = client_of("pyarrow", "lancedb")
        lancedb = client_of("lancedb", "lancedb")
        self.client: Any = lancedb.connect(place, read_consistency_interval=timedelta(0))
        self.client.table_names()
        self._table: Any = None

    @property
    def table(self) -> Any:
        """The table of the client."""
        if self.client is None:
            raise RuntimeError("the gallery is closed")
        self._table = self._table or self.client.open_table(self.fields.name)
        return self._table

    def _describe(self) -> Description | None:
        if self._table is None and self.fields.name not in _names(self.client):
            return None
        table, types = self.table, self._arrow.types
        kinds: dict[str, str] = {}
        for field in table.schema:
            whole = types.is_integer(field.type)
            if types.is_string(field.type) or types.is_large_string(field.type):
                kinds[field.name] = "text"
            elif whole or types.is_floating(field.type):
                kinds[field.name] = "number"
            elif types.is_boolean(field.type):
                kinds[field.name] = "bool"
            if field.name in (self.fields.id, self.fields.label) and not (
                whole or kinds.get(field.name) == "text"
            ):
                raise WrongFieldError(f"the column {field.name!r} of {self.fields.name!r} is {field.type}")
        place = table.schema.get_field_index(self.fields.vector)
        if (
            place < 0
            or self.fields.id not in kinds
            or not types.is_fixed_size_list(table.schema.field(place).type)
        ):
            raise WrongFieldError(
                f"vector is {self.fields.vector!r}, id is {self.fields.id!r}: {self.fields.name!r} has {table.schema}"
            )
        indexes = [
            table.index_stats(index.name)
            for index in table.list_indices()
            if self.fields.vector in index.columns
        ]
        self._indexed = bool(indexes)
        metric = indexes[0].distance_type if indexes else self.fields.metric
        others = {
            name: kind for name, kind in kinds.items() if name not in (self.fields.id, self.fields.label)
        }
        described = Kinds(kinds[self.fields.id], kinds.get(self.fields.label), others)
        return Description(table.schema.field(place).type.list_size, metric, described)

    def _create(self, dim: int, kinds: Kinds) -> None:
        arrow = self._arrow
        whole = {"number": arrow.int64(), "text": arrow.string()}
        columns = {"number": arrow.float64(), "text": arrow.string(), "bool": arrow.bool_()}
        types = {self.fields.id: whole[kinds.ids], self.fields.vector: arrow.list_(arrow.float32(), dim)}
        types |= {} if kinds.labels is None else {self.fields.label: whole[kinds.labels]}
        types |= {name: columns[kind] for name, kind in kinds.columns.items()}
        self._table = self.client.create_table(
            self.fields.name, schema=arrow.schema(list(types.items())), exist_ok=True
        )
        self._indexed = False

    def _put(self, batch: Batch) -> None:
        arrow, schema = self._arrow, self.table.schema
        vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(batch.vectors.ravel()), self.dim)
        columns = {self.fields.id: batch.ids, **batch.columns}
        arrays = {name: arrow.array(values).cast(schema.field(name).type) for name, values in columns.items()}
        arrays[self.fields.vector] = vectors.cast(schema.field(self.fields.vector).type)
        rows = arrow.table({name: arrays[name] for name in schema.names if name in arrays})
        merge = self.table.merge_insert(self.fields.id)
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)
        if self._indexed:
            self.table.optimize()

    def _delete(self, ids: list[Any]) -> None:
        self.table.delete(_sql([(self.fields.id, ids)]))

    def _hits(self, queries: NDArray[np.float32], k: int, filters: Filters, native: Native) -> list[Hits]:
        if self.index and not self._indexed:
            self.table.create_index(
                metric="cosine",
                vector_column_name=self.fields.vector,
                index_type=self.index,
                **self.index_options,
            )
            self._indexed = True
        query = self.table.search(queries, vector_column_name=self.fields.vector).distance_type(
            self.fields.metric
        )
        query = query.limit(k).select([*self._columns(), "_distance"])
        chosen = _sql(filters, native.get("filter"))
        if chosen:
            query = query.where(chosen, prefilter=True)
        for name, value in native.items():
            query = query if name == "filter" else getattr(query, name)(value)
        found = query.to_arrow()
        hits = self._as_hits(found)
        if "query_index" not in found.column_names:
            return [hits]
        ends = np.searchsorted(found["query_index"].to_numpy(), np.arange(len(queries) + 1))
        parts = [slice(start, end) for start, end in pairwise(ends)]
        return [
            Hits(hits.ids[p], hits.vectors[p], None if hits.labels is None else hits.labels[p]) for p in parts
        ]

    def _columns(self) -> list[str]:
        label = [self.fields.label] if self.fields.label in self.table.schema.names else []
        return [self.fields.id, self.fields.vector, *label]

    def _as_hits(self, found: Any) -> Hits:
        ids = found[self.fields.id].to_pylist()
        if self.fields.vector not in found.column_names:
            return Hits(ids, None, None)
        column = found[self.fields.vector].combine_chunks()
        vectors: Any = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dim)
        if column.null_count:
            filled = iter(vectors)
            vectors = [next(filled) if valid else None for valid in column.is_valid().to_pylist()]
        labels = found[self.fields.label].to_pylist() if self.fields.label in found.column_names else None
        return Hits(ids, vectors, labels)

    def _read(self, filters: Filters, among: list[Any] | None, vectors: bool) -> Hits:
        chosen = _sql([*filters, *([] if among is None else [(self.fields.id, among)])])
        query = self.table.search().select(self._columns() if vectors else [self.fields.id])
        return self._as_hits((query.where(chosen) if chosen else query).to_arrow())

    def _count(self, filters: Filters) -> int:
        return int(self.table.count_rows(_sql(filters) or None))

    def close(self) -> None:
        """Let go of the table; calls after it are errors."""
        self.client = self._table = None


def _names(client: Any) -> list[str]:
    """Return the names of all tables, which the client lists a page at a time."""
    names: list[str] = []
    while True:
        page = list(client.table_names(page_token=names[-1] if names else None, limit=100))
        names += page
        if len(page) < 100:
            return names


def _sql(filters: Filters, native: str | None = None) -> str:
    parts = [] if native is None else [f"({native})"]
    for name, values in filters:
        literals = [
            "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value).lower()
            for value in values
        ]
        parts.append(f"`{name}` IN ({', '.join(literals)})")
    return " AND ".join(parts)


def open_address(address: str, dim: int | None, fields: Fields) -> LancedbGallery:
    """Return the gallery for "lancedb:FOLDER" or "lancedb:s3://bucket/folder"."""
    return LancedbGallery(address, dim, fields)
