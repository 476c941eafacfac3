"""What the galleries in databases share: checks of what goes in, exact distances of what comes back, and errors."""

from __future__ import annotations

import importlib
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.check import Floats, as_column, as_ids, check, kind_of, norms_of, unit_rows
from laplacian_metric.core.gallery import (
    Checked,
    Fields,
    GalleryError,
    Kinds,
    Sample,
    Where,
    check_items,
    check_tenant,
    check_where,
)
from laplacian_metric.core.neighbours import Neighbours

# Columns with values, any of which is right; all columns have to be right.
Filters = Sequence[tuple[str, list[Any]]]
Native = Mapping[str, Any]
METRICS = ("cosine", "l2", "dot")
NUMBERS_AT_ONCE = 1 << 22  # numbers of vectors in one response
LARGEST_FLOAT32, SMALLEST_FLOAT32 = 1e18, 1e-18  # norms between which float32 has all its digits
NORMS_COMPARED = 256  # items whose norms are compared at opening
SAME_NORM = 1e-3  # by how much norms may differ


class WrongFieldError(ValueError):
    """The collection has no such field, or one of another type than a gallery needs."""


class Batch(NamedTuple):
    """Items that are written at once: ids (n,), vectors (n, D), and columns (n,), the label among them."""

    ids: list[Any]
    vectors: NDArray[np.float32]
    columns: dict[str, list[Any]]


class Hits(NamedTuple):
    """Items as the engine returned them: ids (n,), vectors (n, D), and labels (n,), None where they have none."""

    ids: list[Any]
    vectors: Any
    labels: list[Any] | None


@dataclass(frozen=True)
class Description:
    """What a collection has: its dimension, its metric, and the kinds of its items, None where they are not known."""

    dim: int
    metric: str
    kinds: Kinds | None


class EngineGallery(ABC):
    """Items in an engine.

    Args:
        address: see `laplacian_metric.core.gallery.open_gallery`; what follows "#" is the approximate index.
        dim: of the vectors; None for that of the collection.
        fields: how the collection calls what a gallery needs.
    """

    engine: ClassVar[str]
    batch: int = 1000  # items that are written, read or removed at once

    def __init__(self, address: str, dim: int | None, fields: Fields) -> None:
        if fields.metric not in METRICS:
            raise ValueError(f"metric is {fields.metric!r}: it is one of {', '.join(METRICS)}")
        self.address = without_credentials(address)
        self.fields, self.where = fields, dict(fields.where or {})
        self.optional: set[str] = set()  # columns that the engine fills where items are added without them
        self.norm: float | None = None  # of all vectors, where the engine orders them by l2 or dot product
        place, _, index = address.partition("#")
        self.index, self.index_options = _index_of(index)
        self._writing = threading.Lock()
        with self._calling("be opened"):
            self._open(place.partition(":")[2])
        self._described = self._describe_now()
        if self._described is None and dim is None:
            raise ValueError(f"dim is needed: {self.address} has no collection {fields.name!r} yet")
        if self._described is None and fields.metric != "cosine":
            raise ValueError(f"metric is {fields.metric!r}: a new collection is made with 'cosine'")
        self.dim = self._described.dim if self._described is not None else int(dim or 0)
        self.batch = min(self.batch, max(100, NUMBERS_AT_ONCE // self.dim))
        self._compare(dim)

    def _compare(self, dim: int | None) -> None:
        """Compare dimension and metric of an existing collection with what was asked for."""
        found, name = self._described, self.fields.name
        if found is None:
            return
        if dim is not None and found.dim != dim:
            raise ValueError(f"dim is {dim}, the collection {name!r} has vectors of {found.dim}")
        if found.metric != self.fields.metric:
            raise ValueError(
                f"metric is {self.fields.metric!r}, the collection {name!r} has {found.metric!r}: pass it"
            )
        if found.kinds is not None and found.kinds.labels is None and self.fields.label != Fields.label:
            raise ValueError(f"label is {self.fields.label!r}, the collection {name!r} has no such field")
        if found.metric != "cosine" and len(self):
            norms = np.linalg.norm(self.sample(NORMS_COMPARED).vectors.astype(np.float64), axis=1)
            self.norm = float(norms.mean())
            self._compare_norms(norms)

    def _compare_norms(self, norms: Floats) -> None:
        """Refuse vectors of other lengths where the engine does not order items by their cosines."""
        if self.fields.metric == "cosine":
            return
        self.norm = float(norms[0]) if self.norm is None else self.norm
        if np.abs(norms - self.norm).max() > SAME_NORM * self.norm:
            raise ValueError(
                f"metric is {self.fields.metric!r} and the vectors have different lengths: their order is not that of "
                "the cosines; scale them to unit length, or copy them into a collection with the metric 'cosine'"
            )

    def __len__(self) -> int:
        kinds = self._kinds(self.where)
        filters = None if kinds is None else self._filters(kinds, None)
        if filters is None:
            return 0
        with self._calling("count"):
            return self._count(filters)

    def search(
        self, vectors: Any, k: int, where: Where | None = None, native: Native | None = None
    ) -> Neighbours:
        """Return the nearest items of queries, see `laplacian_metric.core.gallery.Gallery`."""
        if k < 1:
            raise ValueError(f"k is {k}: at least 1 is needed")
        queries = unit_rows("vectors", check("vectors", vectors, "Q D", D=self.dim))
        kinds = self._kinds([*self.where, *(where if isinstance(where, Mapping) else ())])
        if kinds is None:
            raise ValueError("the gallery is empty: add items first")
        filters = self._filters(kinds, where)
        hits: list[Hits] = []
        step = max(1, NUMBERS_AT_ONCE // (k * self.dim))
        directions = queries.astype(np.float32)
        for start in range(0, len(queries) if filters is not None else 0, step):
            with self._calling("search"):
                hits += self._hits(directions[start : start + step], k, filters or [], native or {})
        return self._neighbours(queries, hits, kinds)

    def _neighbours(self, queries: Floats, hits: list[Hits], kinds: Kinds) -> Neighbours:
        """Return what the engine found, with exact distances; the queries have different numbers of neighbours."""
        width = max((len(hit.ids) for hit in hits), default=0)
        if width == 0 and not self.where and len(self) == 0:
            raise ValueError("the gallery is empty: add items first")
        if width == 0:
            nothing = np.full((len(queries), 1), np.nan)
            return Neighbours(
                np.full((len(queries), 1), -1), np.full((len(queries), 1), np.inf), nothing, None
            )
        vectors = np.full((len(queries), width, self.dim), np.nan, dtype=np.float32)
        ids, labels = [], []
        for query, hit in enumerate(hits):
            self._check_hits(hit, kinds)
            missing = width - len(hit.ids)
            if hit.ids:
                vectors[query, : len(hit.ids)] = hit.vectors
            ids.append(hit.ids + [None] * missing)
            labels.append((hit.labels or []) + [None] * missing)
        neighbours = Neighbours.from_vectors(queries, ids, vectors, None if kinds.labels is None else labels)
        if (neighbours.counts != [len(hit.ids) for hit in hits]).any():
            bad = next(
                id_ for hit in hits for id_, row in zip(hit.ids, hit.vectors, strict=True) if not np.any(row)
            )
            raise GalleryError(
                f"{self.engine} at {self.address}: the item {bad!r} has a vector without a direction"
            )
        if self.fields.metric != "cosine":
            norms = np.linalg.norm(vectors.astype(np.float64), axis=2)
            self._compare_norms(norms[np.isfinite(norms)])
        return neighbours

    def _check_hits(self, hits: Hits, kinds: Kinds) -> None:
        """Refuse items of which the collection does not hold all that a gallery needs."""
        columns = [("vector", hits.vectors), *([("label", hits.labels)] if kinds.labels is not None else [])]
        for name, values in columns:
            for id_, value in zip(hits.ids, values, strict=True):
                if value is None or (name == "label" and _kind(value) != kinds.labels):
                    raise GalleryError(
                        f"{self.engine} at {self.address}: the item {id_!r} has the {name} {value!r}, which is no "
                        f"{kinds.labels if name == 'label' else name}: mend or remove it"
                    )
        for id_ in hits.ids:
            if _kind(id_) != kinds.ids:
                raise GalleryError(
                    f"{self.engine} at {self.address}: the id {id_!r} is not of the kind {kinds.ids}"
                )

    def add(
        self, ids: Any, vectors: Any, labels: Any = None, columns: Mapping[str, Any] | None = None
    ) -> None:
        """Add items, or replace those of the same ids; a call that failed can be repeated."""
        rows = check("vectors", vectors, "N D", D=self.dim)
        with self._writing:
            given = check_tenant(self.where, columns, len(rows)) or {}
            kinds = self._kinds()
            if kinds is not None:
                needed = {
                    name: kind
                    for name, kind in kinds.columns.items()
                    if name in given or name not in self.optional
                }
                kinds = kinds._replace(columns=needed)
            items = check_items(ids, labels, given, len(rows), kinds)
            self._check_kinds(items)
            rows = self._storable(rows)
            if self._described is None:
                with self._calling("create the collection"):
                    self._create(self.dim, items.kinds)
            elif self.where:
                self._refuse_others(items.ids.tolist())
            self._put_all(items, rows)
            if self._described is None or self._described.kinds is None:
                self._described = self._describe_now()

    def _put_all(self, items: Checked, rows: NDArray[np.float32]) -> None:
        """Write items a batch at a time."""
        ids = items.ids.tolist()
        columns = (
            items.columns if items.labels is None else {**items.columns, self.fields.label: items.labels}
        )
        for start in range(0, len(ids), self.batch):
            some = slice(start, start + self.batch)
            try:
                with self._calling("add items"):
                    self._put(
                        Batch(ids[some], rows[some], {name: values[some] for name, values in columns.items()})
                    )
            except GalleryError as error:
                text = f"{error}; {start:,} of {len(ids):,} items were added: repeat the call, which completes it"
                raise GalleryError(text) from error

    def _check_kinds(self, items: Checked) -> None:
        """Refuse ids and labels that the engine does not take."""
        kinds = {_kind(label) for label in items.labels or ()}
        if kinds not in (set(), {"text"}, {"number"}):
            raise TypeError(
                f"labels are {', '.join(sorted(kinds))}: {self.engine} takes all texts or all whole numbers"
            )
        if kinds == {"number"} and not all(-(2**63) <= label < 2**63 for label in items.labels or ()):
            raise ValueError(f"labels has whole numbers beyond 64 bits: {self.engine} does not take them")

    def _storable(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows in float32, scaled to unit length where float32 would lose them."""
        norms = norms_of("vectors", rows)
        self._compare_norms(norms)
        beyond = (norms > LARGEST_FLOAT32) | (norms < SMALLEST_FLOAT32)
        if beyond.any():
            rows = np.asarray(rows, dtype=np.float64) / np.where(beyond, norms, 1)[:, None]
        return np.ascontiguousarray(rows, dtype=np.float32)

    def _refuse_others(self, ids: list[Any]) -> None:
        """Refuse to replace items that the gallery's own filter leaves out."""
        with self._calling("look for ids"):
            others = set(self._among(ids, [])) - set(self._among(ids, self._own_filters()))
        if others:
            raise ValueError(
                f"ids has {min(others)!r}, an item which the gallery's own where leaves out: choose others"
            )

    def remove(self, ids: Any) -> None:
        """Remove items by their ids; all of them have to be there."""
        gone = as_ids("ids", ids).tolist()
        with self._writing:
            if self._kinds() is None:
                raise ValueError("the gallery is empty: add items first")
            with self._calling("look for ids"):
                missing = set(gone) - set(self._among(gone, self._own_filters()))
            if missing:
                raise KeyError(f"ids has {min(missing)!r}: the gallery has no such item")
            for start in range(0, len(gone), self.batch):
                with self._calling(f"remove items after {start:,} of {len(gone):,}"):
                    self._delete(gone[start : start + self.batch])

    def sample(self, n: int, seed: int = 0) -> Sample:
        """Return at most n items, drawn uniformly without replacement, in the order of their ids."""
        if self._kinds(self.where) is None:
            raise ValueError("the gallery is empty: add items first")
        with self._calling("list ids"):
            ids = sorted(self._read(self._own_filters(), None, vectors=False).ids)
        if not ids:
            raise ValueError("the gallery is empty: add items first")
        drawn = np.sort(np.random.default_rng(seed).choice(len(ids), min(n, len(ids)), replace=False))
        chosen = [ids[row] for row in drawn]
        kinds = self._described.kinds if self._described is not None else None
        found: dict[Any, tuple[Any, Any]] = {}
        for start in range(0, len(chosen), self.batch):
            with self._calling("read items"):
                hits = self._read([], chosen[start : start + self.batch], vectors=True)
            if kinds is not None:
                self._check_hits(hits, kinds)
            rows = np.asarray(hits.vectors, dtype=np.float32)  # lists of numbers take eight times the memory
            labels = hits.labels or [None] * len(hits.ids)
            found |= {id_: (row, label) for id_, row, label in zip(hits.ids, rows, labels, strict=True)}
        kept = [id_ for id_ in chosen if id_ in found]  # without what was removed meanwhile
        labelled = kinds is not None and kinds.labels is not None
        named = as_column([found[id_][1] for id_ in kept]) if labelled else None
        return Sample(as_column(kept), np.array([found[id_][0] for id_ in kept]), named)

    def _own_filters(self) -> Filters:
        kinds = self._kinds(self.where)
        return [] if kinds is None else list(check_where(self.where, kinds.columns).items())

    def _filters(self, kinds: Kinds, where: Where | None) -> Filters | None:
        """Return the gallery's own filter and another; None where no item can pass."""
        filters = [
            *check_where(self.where, kinds.columns).items(),
            *check_where(where, kinds.columns).items(),
        ]
        return filters if all(values for _, values in filters) else None

    def _kinds(self, columns: Iterable[str] = ()) -> Kinds | None:
        """Return the kinds of the items that are there; looked for again where they are not known, or lack a column."""
        found = self._described
        if found is None or found.kinds is None or not set(columns) <= set(found.kinds.columns):
            self._described = found = self._describe_now()
        return None if found is None else found.kinds

    def _describe_now(self) -> Description | None:
        with self._calling("describe the collection"):
            return self._describe()

    def _among(self, ids: list[Any], filters: Filters) -> list[Any]:
        """Return those of some ids that are there."""
        parts = (ids[start : start + self.batch] for start in range(0, len(ids), self.batch))
        return [id_ for part in parts for id_ in self._read(filters, part, vectors=False).ids]

    @contextmanager
    def _calling(self, doing: str) -> Iterator[None]:
        """Call the engine; its errors become a `GalleryError`."""
        try:
            yield
        except (GalleryError, WrongFieldError, ImportError):
            raise
        except Exception as error:
            raise GalleryError(f"{self.engine} at {self.address} could not {doing}: {error}") from error

    @abstractmethod
    def _open(self, place: str) -> None:
        """Connect to the engine."""

    @abstractmethod
    def _describe(self) -> Description | None:
        """Return what the collection has; None where it does not exist."""

    @abstractmethod
    def _create(self, dim: int, kinds: Kinds) -> None:
        """Make the collection."""

    @abstractmethod
    def _put(self, batch: Batch) -> None:
        """Write items over those of the same ids."""

    @abstractmethod
    def _delete(self, ids: list[Any]) -> None:
        """Remove one batch of items."""

    @abstractmethod
    def _hits(self, queries: NDArray[np.float32], k: int, filters: Filters, native: Native) -> list[Hits]:
        """Return what was found for each query."""

    @abstractmethod
    def _read(self, filters: Filters, among: list[Any] | None, vectors: bool) -> Hits:
        """Return all items, or those among a batch of ids, in any order; without ``vectors`` their ids are enough."""

    @abstractmethod
    def _count(self, filters: Filters) -> int:
        """Return the number of items."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; calls after it are errors."""


def _kind(value: Any) -> str:
    """Return the kind of an id or a label as engines know them: text, or number for whole numbers only."""
    if isinstance(value, str):
        return "text"
    return "number" if isinstance(value, int) and not isinstance(value, bool) else type(value).__name__


def rows_of(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return columns as one mapping for each row.

    Example:
        >>> rows_of({"id": [1, 2], "label": ["cat", "dog"]})
        [{'id': 1, 'label': 'cat'}, {'id': 2, 'label': 'dog'}]
    """
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def kinds_of(ids: list[Any], payloads: list[dict[str, Any]], fields: Fields) -> Kinds | None:
    """Return the kinds of items in an engine without a schema, of some of them; None where there are none.

    Columns whose values are of several kinds are left out, and so are lists.
    """
    if not ids:
        return None
    names = dict.fromkeys(name for payload in payloads for name in payload)
    columns = {name: kind_of([payload[name] for payload in payloads if name in payload]) for name in names}
    label = columns.get(fields.label)
    kinds = {
        name: kind
        for name, kind in columns.items()
        if kind != "object" and name not in (fields.id, fields.label)
    }
    return Kinds(_kind(ids[0]), label, kinds)


def _index_of(text: str) -> tuple[str, dict[str, int]]:
    """Return name and options of an approximate index.

    Example:
        >>> _index_of("hnsw(m=16, ef_construction=64)")
        ('hnsw', {'m': 16, 'ef_construction': 64})
    """
    name, _, options = text.partition("(")
    return name, {key: int(value) for key, value in re.findall(r"(\w+)\s*=\s*(\d+)", options)}


def credentials(url: str) -> tuple[str, str, str]:
    """Return a URL without credentials, the user and the password that were in it.

    Example:
        >>> credentials("https://:key@host:6333")
        ('https://host:6333', '', 'key')
    """
    parts = urlsplit(url)
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return plain, parts.username or "", parts.password or ""


def without_credentials(address: str) -> str:
    """Return an address without passwords and keys, which may be saved.

    Example:
        >>> without_credentials("postgresql://me:secret@host/photos?sslmode=require&password=secret")
        'postgresql://me@host/photos?sslmode=require'
    """
    address = re.sub(r"(//[^/@:#?]*):[^/@#?]*@", r"\1@", address)
    address = re.sub(r"(?i)(?<=[?&])[^=&#]*(?:password|token|key|secret)[^=&#]*=[^&#]*&?", "", address)
    return re.sub(r"[?&]+(?=#|$)", "", address)


def client_of(module: str, extra: str) -> Any:
    """Return the module of an engine's client; say which extra has it where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f'{module} is missing: pip install "laplacian-metric[{extra}]"') from error
