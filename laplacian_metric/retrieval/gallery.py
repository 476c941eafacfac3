"""What is searched, and how: items of one index or of several; exactly, or by FAISS' inverted lists or graph."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from laplacian_metric.retrieval.items import ROWS_AT_ONCE, Ids, Items, RowsOfIds, check_alike, check_same_kind

LOGGER = logging.getLogger(__name__)

Floats = NDArray[np.float32]
# FAISS asks for so many to place a centre well; beyond the second number they only take time.
POINTS_PER_LIST, MOST_POINTS_PER_LIST = 39, 64


def faiss() -> Any:
    """The module, when it is needed."""
    try:
        return importlib.import_module("faiss")
    except ImportError as error:
        raise ImportError(
            "an index is searched by FAISS: pip install faiss-cpu, or a faiss-gpu that fits your CUDA"
        ) from error


@dataclass(frozen=True)
class Flat:
    """Every item is looked at: exact, no memory beyond the vectors, which may stay in their file."""

    name: ClassVar[Literal["flat"]] = "flat"


@dataclass(frozen=True)
class IVF:
    """Inverted lists: the items of the lists whose centres are nearest to the query are looked at.

    Attributes:
        nlist: the number of lists; by default 4 sqrt(N), and at least 39 items for each.
        nprobe: how many of them a query looks at; by default a sixteenth, at least 32.
        seed: where the centres start from.
    """

    name: ClassVar[Literal["ivf"]] = "ivf"
    nlist: int | None = None
    nprobe: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("nlist", "nprobe"):
            if getattr(self, name) is not None:
                _check_at_least(name, getattr(self, name), 1)
        _check_at_least("seed", self.seed, 0)

    def lists(self, num: int) -> int:
        """How many lists there are for so many items."""
        if self.nlist is not None:
            if self.nlist > num:
                raise ValueError(f"nlist is {self.nlist} for {num} items: no list can be without any")
            return self.nlist
        return max(1, min(round(4 * math.sqrt(num)), num // POINTS_PER_LIST))

    def probes(self, lists: int) -> int:
        """How many of the lists a query looks at."""
        return min(lists, max(32, math.ceil(lists / 16)) if self.nprobe is None else self.nprobe)

    def size(self, num: int, dim: int) -> int:
        """Bytes that it takes: its own copy of the vectors, their numbers, the centres, and the lists' spare room."""
        return int(1.3 * num * (4 * dim + 8)) + 4 * dim * self.lists(num)

    def build(self, mean: Floats) -> Any:
        """FAISS' index of unit vectors (N, D)."""
        module, (num, dim) = faiss(), mean.shape
        lists = self.lists(num)
        quantizer = module.IndexFlatIP(dim)
        built = module.IndexIVFFlat(quantizer, dim, lists, module.METRIC_INNER_PRODUCT)
        built.cp.seed = self.seed
        built.cp.min_points_per_centroid = 1
        built.cp.max_points_per_centroid = MOST_POINTS_PER_LIST
        built.train(mean)
        built.nprobe = self.probes(lists)
        built.add(mean)
        return built

    def outgrown(self, built: Any) -> bool:
        """Whether the items have become so many that other lists would suit them better."""
        return bool(self.nlist is None and self.lists(built.ntotal) > 2 * built.nlist)


@dataclass(frozen=True)
class HNSW:
    """A graph of near neighbours, walked from coarse to fine.

    Attributes:
        links: of each item ("M").
        build_depth: how many candidates are kept while an item is linked ("efConstruction").
        search_depth: how many while a query is answered ("efSearch"), at least k.
        seed: of the levels. The graph is the same each time if it is built by one thread; with several it depends on
            which is first.
    """

    name: ClassVar[Literal["hnsw"]] = "hnsw"
    links: int = 32
    build_depth: int = 80
    search_depth: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        _check_at_least("links", self.links, 2)
        for name in ("build_depth", "search_depth"):
            _check_at_least(name, getattr(self, name), 1)
        _check_at_least("seed", self.seed, 0)

    def size(self, num: int, dim: int) -> int:
        """Bytes that it takes: its own copy of the vectors, the links, and the upper levels."""
        return int(num * (4 * dim + 4 * (2 * self.links + 2) + 16))

    def build(self, mean: Floats) -> Any:
        """FAISS' index of unit vectors (N, D)."""
        module, dim = faiss(), mean.shape[1]
        built = module.IndexHNSWFlat(dim, self.links, module.METRIC_INNER_PRODUCT)
        built.hnsw.rng = module.RandomGenerator(self.seed)
        built.hnsw.efConstruction = self.build_depth
        built.hnsw.efSearch = self.search_depth
        built.add(mean)
        return built

    def outgrown(self, built: Any) -> bool:
        """A graph grows with its items."""
        return False


Kind = Flat | IVF | HNSW
KINDS: dict[str, type[Flat] | type[IVF] | type[HNSW]] = {kind.name: kind for kind in (Flat, IVF, HNSW)}


def as_kind(kind: str | Kind) -> Kind:
    """A kind by name with its usual settings, or as given.

    Example:
        >>> as_kind("ivf"), as_kind(HNSW(links=16)).name
        (IVF(nlist=None, nprobe=None, seed=0), 'hnsw')
    """
    if isinstance(kind, (Flat, IVF, HNSW)):
        return kind
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}: {', '.join(KINDS)} are there")
    return KINDS[kind]()


def kind_to_dict(kind: Kind) -> dict[str, Any]:
    """As values of JSON."""
    return {"name": kind.name, **asdict(kind)}


def kind_from_dict(stored: dict[str, Any]) -> Kind:
    """What `kind_to_dict` gave."""
    settings = dict(stored)
    name = settings.pop("name")
    if name not in KINDS:
        raise ValueError(f"kind is {name!r}: {', '.join(KINDS)} are there")
    return KINDS[name](**settings)


def build(kind: Kind, mean: Floats) -> Any:
    """FAISS' index of the vectors, or None where it needs none; says beforehand what memory it takes."""
    if isinstance(kind, Flat):
        return None
    num, dim = mean.shape
    LOGGER.info(
        "building an %s index of %d vectors in %d dimensions: it takes about %.3g GiB beside the vectors",
        kind.name,
        num,
        dim,
        kind.size(num, dim) / 2**30,
    )
    return kind.build(mean)


def _check_at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}: a whole number of at least {least} is needed")


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

    @property
    def built(self) -> Any:
        """FAISS' own index where there is one, else None."""
        return self.searcher.index if isinstance(self.searcher, Built) else None

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
