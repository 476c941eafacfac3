"""Items in memory as an engine: searched exactly, or by FAISS' index of either space."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.vector_search import Classes, Vectors, refined, search
from laplacian_metric.retrieval.engines.engine import (
    LABEL,
    ROWS_AT_ONCE,
    Columns,
    Engine,
    EngineError,
    Floats,
    Hit,
    NoItemError,
    Records,
    Where,
)
from laplacian_metric.retrieval.gallery import HNSW, IVF, Flat, Kind, as_kind, build, faiss
from laplacian_metric.retrieval.items import Ids, RowsOfIds, as_ids, check_same_kind


@dataclass(frozen=True, eq=False)
class _Table:
    """All items, and FAISS' indexes of them; replaced as a whole."""

    records: Records
    built: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def units(self) -> dict[str, Vectors]:
        return {space: _units(vectors) for space, vectors in self.records.vectors.items()}

    @cached_property
    def classes(self) -> tuple[NDArray[Any], Classes]:
        names, codes = np.unique(self.records.payload[LABEL], return_inverse=True)
        return names, Classes(codes)

    @cached_property
    def row_of(self) -> RowsOfIds:
        return RowsOfIds(self.records.ids)

    def rows(self, ids: Ids) -> NDArray[np.int64]:
        """Return the rows of those ids that are known."""
        check_same_kind(self.records.ids, ids)
        present = np.isin(ids, self.records.ids)
        return self.row_of.find(ids[present])

    def matching(self, where: Where) -> NDArray[np.int64] | None:
        """Return the rows that match; None for all."""
        if where.everything:
            return None
        payload = self.records.payload
        keep = np.ones(len(self.records), dtype=bool)
        if where.native is not None:
            if not callable(where.native):
                raise EngineError(
                    f"the filter is a {type(where.native).__name__}: pass values by column, or a function of the "
                    "columns that returns a boolean for each item"
                )
            keep &= np.asarray(where.native(payload), dtype=bool)
        for name, values in where.equals.items():
            if name not in payload:
                raise EngineError(
                    f"the filter names {name!r}, which the items do not have: {', '.join(payload)}"
                )
            keep &= np.isin(payload[name], values)
        if where.other_label is not None:
            keep &= payload[LABEL] != where.other_label
        return np.flatnonzero(keep)


class ArrayEngine(Engine):
    """Items in memory.

    Args:
        records: at least one, with unit vectors.
        kind: "flat" looks at every item; "ivf" and "hnsw", or `IVF(...)` and `HNSW(...)`, search by FAISS.

    Example:
        >>> records = Records(np.array([7, 9]), {"z": np.eye(2, dtype=np.float32)}, {"label": np.array(["a", "b"])})
        >>> ArrayEngine(records).search("z", np.eye(2, dtype=np.float32)[1:], k=1).labels.tolist()
        [['b']]
    """

    def __init__(self, records: Records, kind: str | Kind = "flat") -> None:
        if len(records) == 0:
            raise EngineError("there are no items: at least one is needed")
        self.kind = as_kind(kind)
        self.name = "exact" if isinstance(self.kind, Flat) else "faiss"
        self.exact = isinstance(self.kind, Flat)
        self.dims = {space: vectors.shape[1] for space, vectors in records.vectors.items()}
        self.text_ids = records.ids.dtype.kind == "U"
        self._writing = threading.Lock()
        self._table = self._built(records)

    def _built(self, records: Records) -> _Table:
        return _Table(
            records,
            {} if self.exact else {space: build(self.kind, v) for space, v in records.vectors.items()},
        )

    @property
    def address(self) -> str:
        """The kind of the search."""
        return f"{self.name}:{self.kind.name}"

    @property
    def records(self) -> Records:
        """All items."""
        return self._table.records

    def count(self, where: Where | None = None) -> int:
        rows = None if where is None else self._table.matching(where)
        return len(self._table.records) if rows is None else len(rows)

    def hits(self, space: str, directions: Floats, k: int, where: Where) -> list[list[Hit]]:
        table = self._table
        some = table.matching(where)
        if some is not None and len(some) == 0:
            return [[] for _ in directions]
        units = table.units[space]
        few = units if some is None else _units(units.rows[some])
        k = min(k, len(few))
        if self.exact:
            nearest = search(few, _units(directions), k)
            return self._hits(table, nearest.rows if some is None else some[nearest.rows], nearest.distances)
        rows = self._by_faiss(table.built[space], directions, k, some)
        short = np.flatnonzero((rows < 0).any(axis=1))
        if len(short):  # the lists or the graph had too few: look at every item
            every = search(few, _units(directions[short]), k).rows
            rows[short] = every if some is None else some[every]
        return self._hits(table, *refined(units, _units(directions), rows))

    @staticmethod
    def _hits(table: _Table, rows: NDArray[np.int64], distances: NDArray[np.float64]) -> list[list[Hit]]:
        ids = table.records.ids[rows].tolist()
        columns = {name: values[rows].tolist() for name, values in table.records.payload.items()}
        names = list(columns)
        return [
            [
                Hit(name, distance, dict(zip(names, payload, strict=True)))
                for name, distance, *payload in zip(
                    ids[query], distances[query].tolist(), *(columns[c][query] for c in names), strict=True
                )
            ]
            for query in range(len(rows))
        ]

    def nearest_of_label(
        self,
        space: str,
        directions: Floats,
        labels: NDArray[Any],
        where: Where,
        *,
        other: bool = False,
        own: Any = None,
    ) -> NDArray[np.float64]:
        """Return the distance (Q,) to the nearest item of each query's label, or of any other, in one exact pass."""
        table = self._table
        some = table.matching(where)
        units, (names, classes) = table.units[space], table.classes
        rows = None if own is None else table.row_of.find(own)
        if some is not None:
            units, classes = _units(units.rows[some]), Classes(classes.codes[some])
            if rows is not None:
                place = np.full(len(table.records), -1)
                place[some] = np.arange(len(some))
                rows = place[rows]
        at = np.searchsorted(names, labels).clip(max=len(names) - 1)
        wanted = np.where(names[at] == labels, at, -1)
        nearest = search(units, _units(directions), 1, own=rows, codes=classes, classes=wanted)
        return nearest.other if other else nearest.same

    def _by_faiss(
        self, built: Any, directions: Floats, k: int, some: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        options = {} if some is None else {"sel": faiss().IDSelectorBatch(some)}
        if isinstance(self.kind, HNSW):
            params = faiss().SearchParametersHNSW(efSearch=max(k, self.kind.search_depth), **options)
        else:
            params = faiss().SearchParametersIVF(nprobe=built.nprobe, **options)
        # faiss.contrib.torch_utils, where another library imports it, replaces `search` by one without parameters.
        search_arrays = getattr(built, "search_numpy", built.search)
        return np.array(search_arrays(directions, k, params=params)[1])

    def put(self, records: Records) -> None:
        with self._writing:
            old = self._table
            joined = Records(
                np.concatenate([old.records.ids, records.ids]),
                {s: np.concatenate([v, records.vectors[s]]) for s, v in old.records.vectors.items()},
                {
                    name: np.concatenate([values, records.payload[name]])
                    for name, values in old.records.payload.items()
                },
            )
            if self.exact:
                self._table = _Table(joined)
                return
            # Copies grow: those that are there may be answering.
            built = {space: faiss().clone_index(index) for space, index in old.built.items()}
            for space, index in built.items():
                index.add(records.vectors[space])
            outgrown = isinstance(self.kind, IVF) and any(map(self.kind.outgrown, built.values()))
            self._table = self._built(joined) if outgrown else _Table(joined, built)

    def delete(self, ids: Ids) -> None:
        with self._writing:
            keep = np.ones(len(self._table.records), dtype=bool)
            keep[self._table.rows(ids)] = False
            if not keep.any():
                raise NoItemError("this would take out all items: a collection needs at least one")
            self._table = self._built(self._table.records[keep])

    def update(self, ids: Ids, columns: Columns) -> None:
        with self._writing:
            rows = self._table.rows(ids)
            payload = dict(self._table.records.payload)
            for name, values in columns.items():
                payload[name] = payload[name].copy()
                payload[name][rows] = values
            records = Records(self._table.records.ids, self._table.records.vectors, payload)
            self._table = _Table(records, self._table.built)

    def read(self, ids: Ids, spaces: Sequence[str] = ()) -> Records:
        table = self._table
        rows = table.rows(as_ids(ids))
        records = table.records
        return Records(
            records.ids[rows],
            {space: records.vectors[space][rows] for space in spaces},
            {name: values[rows] for name, values in records.payload.items()},
        )

    def scroll(self, spaces: Sequence[str] = ()) -> Iterator[Records]:
        records = self._table.records
        vectors = {space: records.vectors[space] for space in spaces}
        for start in range(0, len(records), ROWS_AT_ONCE):
            yield Records(records.ids, vectors, records.payload)[slice(start, start + ROWS_AT_ONCE)]


def _units(vectors: Floats) -> Vectors:
    return Vectors(vectors, np.ones(len(vectors)))
