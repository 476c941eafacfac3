"""What is searched: the items of one index or of several, with their ids, and how their neighbours are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.retrieval.ids import Ids, RowsOfIds, check_same_kind
from laplacian_metric.retrieval.items import ROWS_AT_ONCE, Items, check_alike
from laplacian_metric.retrieval.kinds import faiss

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


class Searcher(Protocol):
    """Finds neighbours: the rows (Q, k) of the greatest cosines, falling, and these; -1 where it found too few."""

    @property
    def exact(self) -> bool:
        """Whether it misses none."""

    def __call__(self, queries: Floats, k: int) -> tuple[Numbers, Floats]: ...


@dataclass(frozen=True, eq=False)
class Scan:
    """Every vector of one array, in memory or mapped."""

    mean: Floats
    exact: bool = True

    def __call__(self, queries: Floats, k: int) -> tuple[Numbers, Floats]:
        module = faiss()
        similarity, rows = module.knn(queries, self.mean, k, metric=module.METRIC_INNER_PRODUCT)
        return rows, similarity


@dataclass(frozen=True, eq=False)
class Built:
    """A FAISS index over the rows."""

    index: Any
    exact: bool = False

    def __call__(self, queries: Floats, k: int) -> tuple[Numbers, Floats]:
        similarity, rows = self.index.search(queries, k)
        return rows, similarity


def searcher_of(mean: Floats, built: Any) -> Searcher:
    """What searches an array: FAISS' index of it, or, where that is None, a scan."""
    return Scan(mean) if built is None else Built(built)


def built_of(gallery: Gallery) -> Any:
    """FAISS' own index where there is one, else None."""
    return gallery.searcher.index if isinstance(gallery.searcher, Built) else None


@dataclass(frozen=True, eq=False)
class Gallery:
    """Items in one or more parts, whose rows are counted through, and their ids."""

    parts: tuple[Items, ...]
    part_ids: tuple[Ids, ...]
    searcher: Searcher
    starts: Numbers = field(init=False)

    def __post_init__(self) -> None:
        for part, ids in zip(self.parts, self.part_ids, strict=True):
            check_alike(self.parts[0], part, "the first part", "another part")
            if len(part) == 0:
                raise ValueError("there are no items: an index needs at least one")
            if len(ids) != len(part):
                raise ValueError(f"ids has {len(ids)} entries for {len(part)} items")
            check_same_kind(self.part_ids[0], ids)
        object.__setattr__(self, "starts", np.cumsum([0, *(len(part) for part in self.parts)]))

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def dim(self) -> int:
        """D."""
        return self.parts[0].dim

    @property
    def source(self) -> str:
        """What made the items."""
        return self.parts[0].source

    @property
    def exact(self) -> bool:
        """Whether the search for neighbours misses none."""
        return self.searcher.exact

    @cached_property
    def ids(self) -> Ids:
        """Of all rows."""
        return self.part_ids[0] if len(self.parts) == 1 else np.concatenate(self.part_ids)

    @cached_property
    def row_of(self) -> RowsOfIds:
        """From ids to rows."""
        return RowsOfIds(self.ids)

    @cached_property
    def length(self) -> Floats:
        """The mean resultant length A(kappa) of every item, (N,)."""
        from laplacian_metric.retrieval.likelihood import mean_resultant_length

        lengths = np.empty(len(self), dtype=np.float32)
        for start, part in self.blocks():
            lengths[start : start + len(part)] = mean_resultant_length(part.kappa, self.dim)
        return lengths

    def blocks(self, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[tuple[int, Items]]:
        """All items a few at a time, each block with its first row."""
        for start, part in zip(self.starts, self.parts, strict=False):
            for first in range(0, len(part), rows_at_once):
                yield int(start) + first, part[first : first + rows_at_once]

    def mean_at(self, rows: Numbers) -> Floats:
        """The directions of some rows of any shape, (..., D)."""
        return self._at(rows, lambda part: part.mean)

    def kappa_at(self, rows: Numbers) -> Floats:
        """The concentrations of some rows."""
        return self._at(rows, lambda part: part.kappa)

    def items_at(self, rows: Numbers) -> Items:
        """Some rows (n,) as items, without their variance."""
        uncertainty = self._at(rows, lambda part: part.uncertainty)
        return Items.trusted(self.mean_at(rows), self.kappa_at(rows), uncertainty, None, self.source)

    def nearest(self, queries: Floats, k: int) -> tuple[Numbers, Floats]:
        """The rows (Q, k) of the greatest cosines, falling, and the cosines.

        Where an approximate search found fewer than k, every item is looked at instead.
        """
        if len(queries) == 0:
            return np.zeros((0, k), dtype=np.int64), np.zeros((0, k), dtype=np.float32)
        rows, similarity = self.searcher(queries, k)
        short = (rows < 0).any(axis=1)
        if short.any():
            rows[short], similarity[short] = scan_parts([part.mean for part in self.parts], queries[short], k)
        return rows, np.clip(similarity, -1, 1, out=similarity)

    def _at(self, rows: Numbers, of: Callable[[Items], NDArray[Any]]) -> NDArray[Any]:
        if len(self.parts) == 1:
            return of(self.parts[0])[rows]
        first = of(self.parts[0])
        values = np.empty((*rows.shape, *first.shape[1:]), dtype=first.dtype)
        number = np.searchsorted(self.starts, rows, side="right") - 1
        for i in np.unique(number):
            values[number == i] = of(self.parts[i])[rows[number == i] - self.starts[i]]
        return values


def scan_parts(means: list[Floats], queries: Floats, k: int) -> tuple[Numbers, Floats]:
    """The nearest of several arrays, whose rows are counted through: each is read where it lies."""
    scans, start = [], 0
    for mean in means:
        rows, similarity = Scan(mean)(queries, min(k, len(mean)))
        scans.append((rows + start, similarity))
        start += len(mean)
    return merge(scans, k)


def merge(parts: list[tuple[Numbers, NDArray[Any]]], k: int) -> tuple[Numbers, NDArray[Any]]:
    """The k greatest of several lists (Q, any) of rows with their values, falling; of equals the first row first."""
    rows = np.concatenate([rows for rows, _ in parts], axis=1)
    values = np.concatenate([values for _, values in parts], axis=1)
    # A row of -1 is none.
    order = np.lexsort((rows, -values, rows < 0), axis=1)[:, :k]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(values, order, axis=1)
