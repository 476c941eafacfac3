"""A gallery in memory that FAISS searches: any index of `faiss.index_factory`, beside the vectors themselves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.core.array_gallery import NEAR_TIES, ArrayGallery, Items, among
from laplacian_metric.core.check import as_ids, check, unit_rows
from laplacian_metric.core.gallery import Fields, Where
from laplacian_metric.core.neighbours import Neighbours
from laplacian_metric.galleries.engine import client_of

MOST_GONE = (
    64  # items, or one in 1,000, that the index still holds after they were removed; beyond it is built anew
)
SEARCH_DEPTH = 64  # efSearch of graphs
LISTS_PER_PROBE = 16  # inverted lists of which one is looked at


class FaissGallery(ArrayGallery):
    """Items in arrays with an index of FAISS over them, which is built when the first query comes.

    Filters are searched exactly, and so is everything while there are too few items to train the index.

    Args:
        factory: what `faiss.index_factory` takes, such as "Flat", "HNSW32" or "IVF256,Flat".
        dim: of the vectors.
        where: see `laplacian_metric.core.gallery.open_gallery`.
    """

    def __init__(self, factory: str, dim: int, where: Where | None = None) -> None:
        super().__init__(dim=dim, where=where)
        self.address = f"faiss:{factory}"
        self._faiss = client_of("faiss", "faiss")
        self._factory = factory
        self._index: Any = None
        self._rows = np.empty(
            0, dtype=np.int64
        )  # the item of each vector of the index, -1 for those that are gone
        self._gone = 0  # how many those are
        self._trained = 0  # the number of items that the index was trained on
        self._too_few = 0  # the number of items that it could not be trained on
        self._using = threading.RLock()
        self._empty_index()

    def search(
        self, vectors: Any, k: int, where: Where | None = None, native: Mapping[str, Any] | None = None
    ) -> Neighbours:
        """Return the nearest items of queries; ``native`` are search parameters such as {"nprobe": 16}."""
        if k < 1 or where is not None or self.where or self._items is None:
            return super().search(vectors, k, where)
        queries = unit_rows("vectors", check("vectors", vectors, "Q D", D=self.dim))
        with self._using:
            items = self.items
            self._build(items)
            if self._index is None:
                return super().search(vectors, k)
            most = min(k + NEAR_TIES + self._gone, self._index.ntotal)
            # faiss.contrib.torch_utils, which other libraries load, replaces `search` by one without parameters.
            search = getattr(self._index, "search_numpy", self._index.search)
            _, places = search(queries.astype(np.float32), most, params=self._parameters(native))
            rows = np.where(places < 0, -1, self._rows[places])
        k = min(k, len(items))
        if (np.count_nonzero(rows >= 0, axis=1) < k).any():
            return super().search(vectors, k)  # the index returned too few
        neighbours = np.asarray(items.vectors[rows], dtype=np.result_type(items.vectors.dtype, np.float32))
        neighbours[rows < 0] = np.nan
        labels = None if items.labels is None else items.labels[rows]
        return Neighbours.from_vectors(queries, items.ids[rows], neighbours, labels).first(k)

    def add(
        self, ids: Any, vectors: Any, labels: Any = None, columns: Mapping[str, Any] | None = None
    ) -> None:
        """Add items, or replace those of the same ids."""
        checked = as_ids("ids", ids)
        with self._using:
            before = self._items
            super().add(checked, vectors, labels, columns)
            self._follow(before, checked)

    def remove(self, ids: Any) -> None:
        """Remove items by their ids."""
        checked = as_ids("ids", ids)
        with self._using:
            before = self._items
            super().remove(checked)
            self._follow(before, checked)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled and copied: the items; the index is built anew."""
        left_out = ("_using", "_faiss", "_index")
        return {name: value for name, value in super().__getstate__().items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._using = threading.RLock()
        self._faiss = client_of("faiss", "faiss")
        self._index = None

    def _follow(self, before: Items | None, ids: NDArray[Any]) -> None:
        """Have the index follow a change: new items are added to it, those of some ids are gone."""
        if self._index is None or before is None or self._items is None:
            self._index = None
            return
        gone = among(before.ids, ids)
        row_after = np.where(gone, -1, np.cumsum(~gone) - 1)
        self._rows = np.where(self._rows >= 0, row_after[self._rows], -1)
        fresh = np.arange(len(before) - np.count_nonzero(gone), len(self._items))
        self._gone = int(np.count_nonzero(self._rows < 0))
        if self._gone > max(MOST_GONE, len(before) // 1000) or len(self._items) > 2 * self._trained:
            self._index = None
        elif len(fresh):
            self._index.add(_directions(self._items.vectors[fresh]))
            self._rows = np.concatenate([self._rows, fresh])

    def _build(self, items: Items) -> None:
        """Build the index where there is none, and there are more items than when it could not be trained."""
        if self._index is not None or len(items) <= self._too_few:
            return
        index = self._empty_index()
        directions = _directions(items.vectors)
        try:
            index.train(directions)
        except RuntimeError:
            self._too_few = len(items)
            return
        index.add(directions)
        self._index, self._rows, self._gone = index, np.arange(len(items)), 0
        self._trained = len(items)

    def _empty_index(self) -> Any:
        try:
            index = self._faiss.index_factory(self.dim, self._factory, self._faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise ValueError(f"address is {self.address!r}: {error}") from error
        lists = self._faiss.try_extract_index_ivf(index)
        if lists is not None:
            lists.nprobe = max(8, lists.nlist // LISTS_PER_PROBE)
        if hasattr(index, "hnsw"):
            index.hnsw.efSearch = SEARCH_DEPTH
        return index

    def _parameters(self, native: Mapping[str, Any] | None) -> Any:
        """Return search parameters of FAISS for the kind of the index."""
        if not native:
            return None
        names = {"IndexIVF": "SearchParametersIVF", "IndexHNSW": "SearchParametersHNSW"}
        inner = self._faiss.downcast_index(getattr(self._index, "index", self._index))
        kind = next((names[base] for base in names if isinstance(inner, getattr(self._faiss, base))), None)
        if kind is None:
            raise ValueError(f"native is {dict(native)}: {self.address} has no search parameters")
        parameters = getattr(self._faiss, kind)(**native)
        if inner is self._index or not hasattr(self._index, "chain"):
            return parameters
        return self._faiss.SearchParametersPreTransform(index_params=parameters)


def _directions(vectors: NDArray[Any]) -> NDArray[np.float32]:
    return np.ascontiguousarray(unit_rows("vectors", vectors), dtype=np.float32)


def open_address(address: str, dim: int | None, fields: Fields) -> FaissGallery:
    """Return an empty gallery for an address such as "faiss:HNSW32"."""
    if dim is None:
        raise ValueError("dim is needed: a gallery of FAISS is in memory and begins empty")
    return FaissGallery(address.partition(":")[2] or "Flat", dim, fields.where)
