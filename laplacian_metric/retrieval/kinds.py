"""How an index searches: exactly, or by FAISS' inverted lists or graph with the settings given here."""

from __future__ import annotations

import importlib
import logging
import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

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
