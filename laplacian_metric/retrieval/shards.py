"""Several saved indexes as one, and how the processes of ``torchrun`` make one each."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from laplacian_metric.retrieval.calibrations import Calibrations
from laplacian_metric.retrieval.gallery import (
    Floats,
    Gallery,
    Kind,
    Numbers,
    Scan,
    Searcher,
    faiss,
    merge,
)
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import GivenIds, Items, check_unique
from laplacian_metric.retrieval.retriever import Retriever
from laplacian_metric.retrieval.storage import load, save

PATTERN = re.compile(r"shard-(\d{5})-of-(\d{5})")


class Shards(Retriever):
    """Several indexes of one source that answer as one, with the rows counted through.

    Flat ones are scanned where they lie, mapped or in memory; the others are searched by FAISS' IndexShards. What was
    calibrated on a single shard does not hold for all of them: calibrate anew, and set ``calibrations``.

    Example:
        >>> items = Items(np.eye(4), np.ones(4), np.ones(4), None, source="a4f0")
        >>> shards = Shards([Index(items[:3], [7, 8, 9]), Index(items[3:], [5])])
        >>> shards.query(items[2:], k=1).ids.ravel()
        array([9, 5])
    """

    def __init__(self, indexes: Sequence[Index]) -> None:
        if not indexes:
            raise ValueError("there are no indexes: at least one is needed")
        galleries = [index.state.gallery for index in indexes]
        parts = tuple(gallery.parts[0] for gallery in galleries)
        ids = tuple(gallery.ids for gallery in galleries)
        joined = Gallery(parts, ids, _searcher(parts, [gallery.built for gallery in galleries]))
        check_unique(joined.ids, " from shard to shard")
        super().__init__(joined)
        self.num_shards = len(indexes)

    def __repr__(self) -> str:
        return f"Shards({len(self)} items in {self.num_shards} shards, source {self.source[:12]!r})"


def open_shards(
    folder: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    mmap: bool = True,
    calibrations: Calibrations | None = None,
) -> Shards:
    """Load several saved indexes as one.

    Args:
        folder: that `build_shard` filled, or a list of folders that `save` wrote.
        mmap: as for `load`.
        calibrations: made with all of them.
    """
    folders = (
        shard_folders(folder) if isinstance(folder, (str, os.PathLike)) else [Path(one) for one in folder]
    )
    shards = Shards([load(one, mmap=mmap) for one in folders])
    if calibrations is not None:
        shards.calibrations = calibrations
    return shards


def shard_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """The shards in a folder, in order; one set, and whole."""
    place = Path(folder)
    if not place.is_dir():
        raise FileNotFoundError(f"there is no folder {place}")
    matches = {path.name: match for path in place.iterdir() if (match := PATTERN.fullmatch(path.name))}
    totals = sorted({int(match[2]) for match in matches.values()})
    if not totals:
        raise FileNotFoundError(f"{place} holds no shards: pass the folder that build_shard filled")
    if len(totals) > 1:
        raise ValueError(
            f"{place} holds sets of {' and '.join(map(str, totals))} shards: take away those of earlier runs"
        )
    needed = [shard_name(number, totals[0]) for number in range(totals[0])]
    missing = [name for name in needed if name not in matches]
    if missing:
        raise FileNotFoundError(f"{place} lacks {', '.join(missing)}: make the missing shards, or copy them")
    return [place / name for name in needed]


def shard_name(number: int, total: int) -> str:
    """The name of a shard's folder.

    Example:
        >>> shard_name(1, 4)
        'shard-00001-of-00004'
    """
    return f"shard-{number:05d}-of-{total:05d}"


def build_shard(
    folder: str | os.PathLike[str],
    items: Items,
    ids: GivenIds | None = None,
    *,
    kind: str | Kind = "flat",
    overwrite: bool = False,
) -> Path:
    """Index and save this process's share of the items; every process of ``torchrun`` calls it with its own.

    All return when all have saved. If one fails, all raise: that one its own error, the others that there was one.

    Args:
        folder: the same for all; it is made where it is missing.
        items: this process's share.
        ids: of them, none twice in all shares; by default numbered through from the first process's to the last's.
        kind: as for `Index`.
        overwrite: replace the shards of an earlier run with as many processes.

    Returns:
        this process's folder.
    """
    rank, descriptions = _gather((len(items), items.dim, items.source))
    place = Path(folder) / shard_name(rank, len(descriptions))
    problem: Exception | None = None
    try:
        for number, (_, dim, source) in enumerate(descriptions):
            if (dim, source) != (items.dim, items.source):
                raise ValueError(
                    f"process {number} has items of another source or dimension than process {rank}: give all the same "
                    "encoder and posterior"
                )
        place.parent.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in place.parent.iterdir() if PATTERN.fullmatch(path.name)}
        if others - {shard_name(number, len(descriptions)) for number in range(len(descriptions))}:
            raise FileExistsError(
                f"{folder} holds shards of another number of processes: name another folder"
            )
        if ids is None:
            ids = sum(count for count, _, _ in descriptions[:rank]) + np.arange(len(items))
        save(Index(items, ids, kind=kind), place, overwrite=overwrite)
    except Exception as error:
        problem = error
    _, problems = _gather(None if problem is None else f"{type(problem).__name__}: {problem}")
    if problem is not None:
        raise problem
    for number, other in enumerate(problems):
        if other is not None:
            raise RuntimeError(f"process {number} could not make its shard: {other}")
    return place


def _gather(own: Any) -> tuple[int, list[Any]]:
    """This process's number, and what every process has; without torch.distributed there is one."""
    from torch import distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return 0, [own]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    return dist.get_rank(), gathered


# --- searching ---


@dataclass(frozen=True, eq=False)
class _Together:
    """Neighbours among flat parts and parts that FAISS has an index of, in rows that are counted through.

    ``flat`` are the former with their first rows, ``shards`` is FAISS' IndexShards of the latter, which counts them
    through on its own; ``starts`` and ``true_starts`` are where each of these begins by that count and by ours.
    """

    flat: list[tuple[int, Floats]]
    shards: Any
    starts: Numbers
    true_starts: Numbers

    @property
    def exact(self) -> bool:
        """Whether nothing is missed."""
        return self.shards is None

    def __call__(self, queries: Floats, k: int) -> tuple[Numbers, Floats]:
        results = []
        for start, mean in self.flat:
            rows, similarity = Scan(mean)(queries, min(k, len(mean)))
            results.append((rows + start, similarity))
        if self.shards is not None:
            similarity, rows = self.shards.search(queries, k)
            part = np.searchsorted(self.starts, rows, side="right") - 1
            moved = rows - self.starts[part] + self.true_starts[part]
            results.append((np.where(rows < 0, -1, moved), similarity))
        return merge(results, k)


def _searcher(parts: Sequence[Items], built: Sequence[Any]) -> Searcher:
    true_starts = np.cumsum([0, *map(len, parts)])[:-1]
    flat = [
        (int(start), part.mean)
        for start, part, own in zip(true_starts, parts, built, strict=True)
        if own is None
    ]
    others = [own for own in built if own is not None]
    if not others:
        return _Together(flat, None, true_starts, true_starts)
    # No threads of its own: a service that forks after loading would lose them, and crash when it lets go of the
    # shards. Queries still share the threads of each search. Rows are counted on from one shard to the next.
    shards = faiss().IndexShards(parts[0].dim, False, True)
    for own in others:
        shards.add_shard(own)
    starts = np.cumsum([0, *(own.ntotal for own in others)])[:-1]
    return _Together(flat, shards, starts, true_starts[[own is not None for own in built]])
