"""A table of PostgreSQL with pgvector; an approximate index by "#hnsw" or "#ivfflat" behind the address."""

from __future__ import annotations

import threading
from contextlib import suppress
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

OPERATORS = {"cosine": "<=>", "l2": "<->", "dot": "<#>"}
METRIC_OF = {"vector_cosine_ops": "cosine", "vector_l2_ops": "l2", "vector_ip_ops": "dot"}
WHOLE = {"smallint", "integer", "bigint"}
KIND_OF = dict.fromkeys(WHOLE | {"real", "double precision", "numeric"}, "number")
KIND_OF |= dict.fromkeys(("text", "character varying", "character", "uuid"), "text") | {"boolean": "bool"}
TYPE_OF = {"number": "double precision", "text": "text", "bool": "boolean"}
COPIED_AS = dict.fromkeys(WHOLE, "int8") | {"boolean": "bool"}
COPIED_AS |= dict.fromkeys(("real", "double precision", "numeric"), "float8")  # all others as text
ROWS_PER_LIST = 1000  # of an ivfflat index
MOST_CANDIDATES = 1000  # hnsw.ef_search
COLUMNS = (
    "SELECT attname, format_type(atttypid, NULL), atttypmod, atthasdef OR attidentity <> '' FROM pg_attribute "
    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
)
INDEXES = (
    "SELECT opcname FROM pg_index JOIN pg_opclass ON pg_opclass.oid = ANY(indclass) "
    "WHERE indrelid = to_regclass(%s) AND opcname LIKE 'vector%%'"
)


class PgvectorGallery(EngineGallery):
    """A table of PostgreSQL; one connection for each thread."""

    engine = "PostgreSQL"
    _types: dict[str, str]

    def _open(self, place: str) -> None:
        self._psycopg = client_of("psycopg", "pgvector")
        sql = client_of("psycopg.sql", "pgvector")
        self._sql, self._uri, self._closed = sql.SQL, f"postgresql:{place}", False
        self._names = {
            "table": sql.Identifier(*self.fields.name.split(".")),
            "id": sql.Identifier(self.fields.id),
            "vector": sql.Identifier(self.fields.vector),
            "label": sql.Identifier(self.fields.label),
            "order": sql.SQL(OPERATORS[self.fields.metric]),
        }
        self._identifier = sql.Identifier
        self._local = threading.local()
        self._connection()

    def _connection(self) -> Any:
        """Return this thread's connection; a new one where it was lost."""
        connection = getattr(self._local, "connection", None)
        if self._closed:
            raise self._psycopg.OperationalError("the gallery is closed")
        if connection is not None and not connection.closed:
            with suppress(self._psycopg.OperationalError):
                connection.pgconn.consume_input()  # the server's last words, if it has ended meanwhile
                connection.pgconn.consume_input()  # notices that it has
        if connection is None or connection.closed:
            connection = self._psycopg.connect(self._uri, autocommit=True, connect_timeout=10)
            self._local.connection, self._local.settings = connection, {}
        return connection

    def _rows(self, text: str, values: Any = (), **parts: Any) -> list[Any]:
        """Return the rows of a statement; names in braces are those of the collection."""
        cursor = self._connection().cursor(binary=True)
        return list(cursor.execute(self._sql(text).format(**self._names, **parts), values).fetchall())

    def _describe(self) -> Description | None:
        table = self._names["table"].as_string(None)
        columns = self._rows(COLUMNS, [table])
        if not columns:
            return None
        self._types = {name: kind for name, kind, _, _ in columns}
        self.optional = {name for name, _, _, filled in columns if filled}
        needed = [(self.fields.id, {"text", "number"}), (self.fields.label, {"text", "number"})]
        for name, kinds in needed if self.fields.label in self._types else needed[:1]:
            kind = KIND_OF.get(self._types.get(name, ""))
            if kind not in kinds or (kind == "number" and self._types[name] not in WHOLE):
                raise WrongFieldError(
                    f"{self.fields.name!r} has no column {name!r} of texts or whole numbers: {columns}"
                )
        dims = [dim for name, kind, dim, _ in columns if name == self.fields.vector and kind == "vector"]
        if not dims:
            raise WrongFieldError(f"vector is {self.fields.vector!r}: {self.fields.name!r} has {self._types}")
        if dims[0] < 1:  # the column takes vectors of any dimension
            dims = [row[0] for row in self._rows("SELECT vector_dims({vector}) FROM {table} LIMIT 1")] or [0]
        metrics = [METRIC_OF.get(row[0], row[0]) for row in self._rows(INDEXES, [table])]
        self._indexed = bool(metrics)
        own = (self.fields.id, self.fields.label, self.fields.vector)
        others = {
            name: KIND_OF[kind] for name, kind in self._types.items() if name not in own and kind in KIND_OF
        }
        label = KIND_OF[self._types[self.fields.label]] if self.fields.label in self._types else None
        metric = self.fields.metric if self.fields.metric in metrics or not metrics else metrics[0]
        return Description(dims[0], metric, Kinds(KIND_OF[self._types[self.fields.id]], label, others))

    def _create(self, dim: int, kinds: Kinds) -> None:
        whole = {"number": "bigint", "text": "text"}
        columns = {
            self.fields.id: f"{whole[kinds.ids]} PRIMARY KEY",
            self.fields.vector: f"vector({dim:d}) NOT NULL",
        }
        if kinds.labels is not None:
            columns[self.fields.label] = f"{whole[kinds.labels]} NOT NULL"
        columns |= {name: f"{TYPE_OF[kind]} NOT NULL" for name, kind in kinds.columns.items()}
        parts = [self._sql("{} " + kind).format(self._identifier(name)) for name, kind in columns.items()]
        connection = self._connection()
        with connection.transaction():
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            text = self._sql("CREATE TABLE IF NOT EXISTS {table} ({columns})")
            connection.execute(text.format(**self._names, columns=self._sql(", ").join(parts)))
        self._describe()

    def _put(self, batch: Batch) -> None:
        kinds, values = {self.fields.vector: "vector"}, [_as_bytes(batch.vectors)]
        for name, column in {self.fields.id: batch.ids, **batch.columns}.items():
            kinds[name] = COPIED_AS.get(self._types[name], "text")
            values.append(_as_type(kinds[name], column))
        names = [self._identifier(name) for name in kinds]
        parts = {
            "columns": self._sql(", ").join(names),
            "new": self._sql(", ").join(
                self._sql("{} " + kind).format(name) for name, kind in zip(names, kinds.values(), strict=True)
            ),
            "cast": self._sql(", ").join(
                self._sql("{}::" + self._types[column]).format(name)
                for name, column in zip(names, kinds, strict=True)
            ),
            "set": self._sql(", ").join(self._sql("{0} = EXCLUDED.{0}").format(name) for name in names),
        }
        connection = self._connection()

        def statement(text: str) -> Any:
            return self._sql(text).format(**self._names, **parts)

        with connection.transaction():
            connection.execute(statement("CREATE TEMP TABLE incoming ({new}) ON COMMIT DROP"))
            with connection.cursor().copy(
                statement("COPY pg_temp.incoming FROM STDIN (FORMAT BINARY)")
            ) as copy:
                copy.set_types(["bytea" if kind == "vector" else kind for kind in kinds.values()])
                for row in zip(*values, strict=True):
                    copy.write_row(row)
            connection.execute(
                statement(
                    "INSERT INTO {table} ({columns}) SELECT {cast} FROM pg_temp.incoming "
                    "ON CONFLICT ({id}) DO UPDATE SET {set}"
                )
            )

    def _delete(self, ids: list[Any]) -> None:
        text = self._sql("DELETE FROM {table} WHERE {id} = ANY(%s::" + self._array(self.fields.id) + ")")
        self._connection().execute(text.format(**self._names), [ids])

    def _hits(self, queries: NDArray[np.float32], k: int, filters: Filters, native: Native) -> list[Hits]:
        if self.index and not self._indexed:
            self._build_index()
        hits = self._found(queries, k, filters, native, exact=False)
        short = [row for row, hit in enumerate(hits) if len(hit.ids) < k]
        if self._indexed and short:  # an index stops after its candidates, of which few may pass the filter
            for row, hit in zip(
                short, self._found(queries[short], k, filters, native, exact=True), strict=True
            ):
                hits[row] = hit
        return hits

    def _found(
        self, queries: NDArray[np.float32], k: int, filters: Filters, native: Native, exact: bool
    ) -> list[Hits]:
        settings: dict[str, Any] = {
            "hnsw.ef_search": min(max(2 * k, 100), MOST_CANDIDATES),
            "ivfflat.probes": 16,
        }
        settings |= {name: value for name, value in native.items() if name != "filter"}
        settings |= {"enable_indexscan": "off" if exact else "on"}
        where, values = self._where(filters, native.get("filter"))
        text = "SELECT {columns} FROM {table} {where} ORDER BY {vector} {order} %s::vector LIMIT %s"
        statement = self._sql(text).format(**self._names, where=where, columns=self._columns())
        connection = self._connection()
        with connection.pipeline():
            for name, value in settings.items():
                if self._local.settings.get(name) != value:
                    connection.execute("SELECT set_config(%s, %s, false)", [name, str(value)])
                    self._local.settings[name] = value
            cursors = [connection.cursor(binary=True) for _ in queries]
            for cursor, query in zip(cursors, queries.tolist(), strict=True):
                # a plan that is kept would not heed enable_indexscan
                cursor.execute(statement, [*values, str(query), k], prepare=False if exact else None)
        return [self._as_hits(cursor.fetchall()) for cursor in cursors]

    def _build_index(self) -> None:
        """Build the index that the address asks for."""
        options = dict(self.index_options)
        if self.index == "ivfflat":
            options = {"lists": max(1, self._count([]) // ROWS_PER_LIST), **options}
        given = ", ".join(f"{name} = {value}" for name, value in options.items())
        text = "CREATE INDEX ON {table} USING {kind} ({vector} vector_cosine_ops)" + (
            f" WITH ({given})" if given else ""
        )
        self._connection().execute(self._sql(text).format(**self._names, kind=self._identifier(self.index)))
        self._indexed = True

    def _as_hits(self, rows: list[Any]) -> Hits:
        labels = [row[2] for row in rows] if self.fields.label in self._types else None
        vectors = [None if row[1] is None else np.frombuffer(row[1], dtype=">f4", offset=4) for row in rows]
        return Hits([row[0] for row in rows], vectors, labels)

    def _id(self) -> Any:
        return self._sql("{}::text" if self._types[self.fields.id] == "uuid" else "{}").format(
            self._names["id"]
        )

    def _columns(self) -> Any:
        label = "{label}" if self.fields.label in self._types else "NULL"
        return self._sql("{given}, {vector}, " + label).format(**self._names, given=self._id())

    def _array(self, name: str) -> str:
        """Return the type of lists of values of a column."""
        return ("bigint" if self._types[name] in WHOLE else self._types[name]) + "[]"

    def _where(
        self, filters: Filters, native: Any = None, among: list[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        parts, given = [], []
        for name, values in [*filters, *([(self.fields.id, among)] if among is not None else [])]:
            kind = COPIED_AS.get(self._types[name], "text")
            values = _as_type(kind, [value for value in values if kind != "int8" or value == int(value)])
            parts.append(self._sql("{} = ANY(%s::" + self._array(name) + ")").format(self._identifier(name)))
            given.append(values)
        if native is not None:
            parts.append(self._sql("(" + native.replace("%", "%%") + ")"))
        return self._sql("WHERE " if parts else "") + self._sql(" AND ").join(parts), given

    def _read(self, filters: Filters, among: list[Any] | None, vectors: bool) -> Hits:
        where, values = self._where(filters, among=among)
        columns = self._columns() if vectors else self._sql("{}, NULL, NULL").format(self._id())
        return self._as_hits(
            self._rows("SELECT {columns} FROM {table} {where}", values, where=where, columns=columns)
        )

    def _count(self, filters: Filters) -> int:
        where, values = self._where(filters)
        return int(self._rows("SELECT count(*) FROM {table} {where}", values, where=where)[0][0])

    def close(self) -> None:
        """Close this thread's connection; calls after it are errors."""
        self._closed = True
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()


def _as_type(kind: str, values: list[Any]) -> list[Any]:
    """Return values as the driver copies them into a column: whole numbers, floats, or as they are."""
    if kind == "int8" and any(value != int(value) for value in values):
        raise ValueError("the column holds whole numbers only")
    types = {"int8": int, "float8": float}
    return [types[kind](value) for value in values] if kind in types else values


def _as_bytes(rows: NDArray[np.float32]) -> list[bytes]:
    """Return vectors as pgvector reads them in binary: the dimension, nothing, and the numbers, big end first."""
    head = np.array([rows.shape[1], 0], dtype=">u2").tobytes()
    return [head + row.tobytes() for row in rows.astype(">f4")]


def open_address(address: str, dim: int | None, fields: Fields) -> PgvectorGallery:
    """Return the gallery for an address such as "postgresql://user@host/database#hnsw"."""
    return PgvectorGallery(address, dim, fields)
