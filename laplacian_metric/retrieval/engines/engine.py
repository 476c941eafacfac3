"""What an engine is: a collection of items in one or two spaces, searched by cosine, with columns beside the vectors.

An engine is an in-memory array, FAISS, Qdrant or Milvus. All of them return `EngineNeighbours`, so that `Trust`,
refusal and credible sets are computed in one way from what any of them finds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.core.vector_search import FARTHEST
from laplacian_metric.retrieval.items import Ids, as_ids, check_same_kind, check_unique, is_text

Floats = NDArray[np.float32]
Columns = Mapping[str, NDArray[Any]]

EMBEDDING, FEATURES = "z", "h"
ID, LABEL = "id", "label"
# What is kept beside the vectors of every item; other columns are the caller's, for filters.
SCALES = tuple(f"{space}_{k}" for space in (EMBEDDING, FEATURES) for k in (10, 11))
TRACES = tuple(f"trace_{space}" for space in (EMBEDDING, FEATURES))
NUMBERS = ("kappa", "uncertainty", *SCALES, *TRACES)
RESERVED = {ID, LABEL, EMBEDDING, FEATURES, *NUMBERS}
UNKNOWN = -1.0  # a scale that was not computed, or that a change has made stale
ROWS_AT_ONCE = 1000
MORE = 400  # neighbours that are looked at before a filter by label is


class EngineError(ValueError):
    """An engine cannot do what was asked of it."""


class EngineUnreachableError(ConnectionError, EngineError):
    """An engine does not answer."""


class NoItemError(EngineError):
    """No item matches a filter."""


class ChangedCollectionError(EngineError):
    """A collection is not the one that its calibration was made on."""


class Hit(NamedTuple):
    """One item that an engine found for a query."""

    id: Any
    distance: float
    payload: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class EngineNeighbours(Neighbours):
    """The k nearest items of Q queries, with the columns (Q, k) that the engine keeps beside their vectors.

    Example:
        >>> near = EngineNeighbours([[7]], [[0.1]], [["cat"]], {"kappa": np.array([[20.0]])})
        >>> near[:1].payload["kappa"].tolist()
        [[20.0]]
    """

    payload: Columns = field(default_factory=dict)

    def __getitem__(self, queries: slice | NDArray[Any]) -> EngineNeighbours:
        """Return the neighbours of some of the queries."""
        labels = None if self.labels is None else self.labels[queries]
        payload = {name: values[queries] for name, values in self.payload.items()}
        return EngineNeighbours(self.ids[queries], self.distances[queries], labels, payload)

    def cut(self, k: int) -> EngineNeighbours:
        """Return the k nearest of them."""
        labels = None if self.labels is None else self.labels[:, :k]
        payload = {name: values[:, :k] for name, values in self.payload.items()}
        return EngineNeighbours(self.ids[:, :k], self.distances[:, :k], labels, payload)


@dataclass(frozen=True)
class Where:
    """Which items are searched.

    Attributes:
        native: a filter of the engine's own, passed on as it is: a `qdrant_client.models.Filter`, an expression of
            Milvus, or for arrays a function of the columns that returns a boolean for each item.
        equals: values by column, one of which the item has to have.
        other_label: the label that it must not have.
    """

    native: Any = None
    equals: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    other_label: Any = None

    @staticmethod
    def of(condition: Any) -> Where:
        """Return a condition as it is, values by column, or an engine's own filter.

        Example:
            >>> Where.of({"shop": ["Bern", "Basel"], "year": 2024}).equals
            {'shop': ('Bern', 'Basel'), 'year': (2024,)}
        """
        if isinstance(condition, Where):
            return condition
        if condition is None:
            return Where()
        if not isinstance(condition, Mapping):
            return Where(native=condition)
        equals = {
            name: tuple(map(plain, values)) if isinstance(values, (list, tuple, set)) else (plain(values),)
            for name, values in condition.items()
        }
        for name, values in equals.items():
            if not values or not all(isinstance(value, (str, int, bool)) for value in values):
                raise EngineError(
                    f"the filter of {name!r} has {values}: texts, whole numbers or booleans are needed; pass a range "
                    "as the engine's own filter"
                )
        return Where(equals=equals)

    def of_label(self, label: Any, other: bool = False) -> Where:
        """Return the same condition, and that the item has, or has not, a label."""
        if other:
            return replace(self, other_label=plain(label))
        return replace(self, equals={**self.equals, LABEL: (plain(label),)})

    @property
    def everything(self) -> bool:
        """Whether every item matches."""
        return self.native is None and not self.equals and self.other_label is None


@dataclass(frozen=True, eq=False)
class Records:
    """N items as an engine keeps them: ids, unit vectors by space and columns; vectors may be left out."""

    ids: Ids
    vectors: Mapping[str, Floats]
    payload: Columns

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> Records:
        """Return some of the items."""
        return Records(
            self.ids[rows],
            {space: vectors[rows] for space, vectors in self.vectors.items()},
            {name: values[rows] for name, values in self.payload.items()},
        )


class Engine(ABC):
    """A collection of items in an engine.

    Attributes:
        name: "exact", "faiss", "qdrant" or "milvus".
        exact: whether a search misses none.
        dims: the number of dimensions of each space: "z", and "h" where features are searched too.
        text_ids: whether ids are text.
    """

    name: str
    exact: bool
    dims: dict[str, int]
    text_ids: bool

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the collection is, without passwords."""

    @abstractmethod
    def count(self, where: Where | None = None) -> int:
        """Return how many items match."""

    @abstractmethod
    def hits(self, space: str, directions: Floats, k: int, where: Where) -> list[list[Hit]]:
        """Return at most k items for each of the unit vectors (Q, D), the nearest first."""

    @abstractmethod
    def put(self, records: Records) -> None:
        """Write new items."""

    @abstractmethod
    def delete(self, ids: Ids) -> None:
        """Take items out."""

    @abstractmethod
    def update(self, ids: Ids, columns: Columns) -> None:
        """Write columns (n,) of some items; their vectors and other columns stay."""

    @abstractmethod
    def read(self, ids: Ids, spaces: Sequence[str] = ()) -> Records:
        """Return some items in this order, with their vectors in some spaces; unknown ids are left out."""

    @abstractmethod
    def scroll(self, spaces: Sequence[str] = ()) -> Iterator[Records]:
        """Yield all items, some at a time, each once."""

    def close(self) -> None:  # noqa: B027 - arrays have nothing to close
        """Let go of files and connections."""

    def __len__(self) -> int:
        return self.count()

    def search(self, space: str, directions: Floats, k: int, where: Any = None) -> EngineNeighbours:
        """Return the k nearest items of unit vectors (Q, D); fewer where fewer match.

        Args:
            space: "z" or "h".
            directions: unit vectors.
            k: how many.
            where: which items are searched, as `Where.of` takes it.

        Raises:
            NoItemError: no item matches.
            EngineError: the engine found fewer items than there are.
        """
        condition = Where.of(where)
        hits = self.hits(space, directions, k, condition)
        fewest = min(map(len, hits))
        if fewest < k:
            matching = self.count(None if condition.everything else condition)
            if matching == 0:
                raise NoItemError("no item matches: search without a filter, or with another one")
            if fewest < min(k, matching):
                row = next(row for row, query_hits in enumerate(hits) if len(query_hits) == fewest)
                raise EngineError(
                    f"{self.name} found {fewest} of {min(k, matching)} items for query {row}: raise the depth of its "
                    "search, or search exactly"
                )
            k = matching
        return self._neighbours([query_hits[:k] for query_hits in hits])

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
        """Return the distance (Q,) to the nearest item of each query's label, or of any other; 2 where there is none.

        Args:
            space: "z" or "h".
            directions: unit vectors (Q, D).
            labels: (Q,).
            where: which items are searched.
            other: look for items of another label.
            own: (Q,), ids of queries that are items, which are left out.
        """
        distances, short = self._among_more(space, directions, labels, where, other, own)
        for label in np.unique(labels[short]):
            rows = short[labels[short] == label]
            hits_of_rows = self.hits(
                space, directions[rows], 1 + (own is not None), where.of_label(label, other)
            )
            for row, hits in zip(rows, hits_of_rows, strict=True):
                others = [hit for hit in hits if own is None or hit.id != own[row]]
                if others:
                    distances[row] = max(0.0, others[0].distance)
        return distances

    def _among_more(
        self, space: str, directions: Floats, labels: NDArray[Any], where: Where, other: bool, own: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Look for the labels among more neighbours, of all queries at once; return the queries without any, too."""
        distances = np.full(len(directions), FARTHEST)
        short = []
        for row, hits in enumerate(self.hits(space, directions, MORE, where)):
            for hit in hits:
                if (hit.payload.get(LABEL) == labels[row]) != other and (own is None or hit.id != own[row]):
                    distances[row] = max(0.0, hit.distance)
                    break
            else:
                short.append(row)
        return distances, np.array(short, dtype=np.int64)

    def check_new(self, ids: Ids) -> Ids:
        """Refuse ids that are repeated, of another kind, or in the collection already."""
        named = as_ids(ids)
        check_same_kind(np.zeros(0, dtype="U1" if self.text_ids else np.int64), named)
        check_unique(named)
        if len(known := self.read(named).ids):
            raise EngineError(
                f"{len(known)} of {len(named)} ids are in the collection already, such as {known[0]!s}"
            )
        return named

    def _neighbours(self, hits: list[list[Hit]]) -> EngineNeighbours:
        shape = (len(hits), len(hits[0]))
        flat = [hit for query_hits in hits for hit in query_hits]
        columns = columns_of([hit.payload for hit in flat])
        labels = columns.pop(LABEL, None)
        return EngineNeighbours(
            as_ids([hit.id for hit in flat]).reshape(shape),
            np.array([hit.distance for hit in flat]).reshape(shape),
            None if labels is None else labels.reshape(shape),
            {name: values.reshape(shape) for name, values in columns.items()},
        )


def columns_of(payloads: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Return payloads (n) as columns (n,): our own numbers, and labels where every item has one.

    Example:
        >>> columns_of([{"label": "cat", "kappa": 20.0}, {"label": "dog"}])["kappa"].tolist()
        [20.0, nan]
    """
    columns: dict[str, NDArray[Any]] = {}
    for name in NUMBERS:
        if any(name in payload for payload in payloads):
            columns[name] = np.array([payload.get(name, np.nan) for payload in payloads], dtype=np.float64)
    if payloads and all(payload.get(LABEL) is not None for payload in payloads):
        columns[LABEL] = np.array([payload[LABEL] for payload in payloads])
    return columns


def plain(value: Any) -> Any:
    """Return a number of numpy as Python's own; JSON and databases take no others.

    Example:
        >>> plain(np.int64(3))
        3
    """
    return value.item() if isinstance(value, np.generic) else value


def rows_of(records: Records, payload_id: bool = False) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the id and the payload of each record, as plain values."""
    columns = {name: values.tolist() for name, values in records.payload.items()}
    for row, name in enumerate(records.ids.tolist()):
        payload = {column: values[row] for column, values in columns.items()}
        yield name, {ID: name, **payload} if payload_id else payload


def module_of(name: str, extra: str) -> Any:
    """Return an optional module; where it is missing the error names the extra that installs it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f'{extra} is needed: pip install "laplacian-metric[{extra}]"') from error


def check_label_kind(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as text or whole numbers, which every engine can filter by."""
    array = np.asarray(labels)
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array.tolist()):
        array = array.astype(str)
    if array.dtype.kind == "b" or array.dtype.kind not in "Uiu":
        raise EngineError(
            f"labels have dtype {array.dtype}: engines filter by texts or whole numbers, pass such labels"
        )
    return array if is_text(array) else array.astype(np.int64)
