"""Several indexes as one: as a single index of all their items; and made by two processes."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laplacian_metric.retrieval.calibrations import Calibrations, NotCalibratedError
from laplacian_metric.retrieval.gallery import HNSW, IVF
from laplacian_metric.retrieval.index import Index
from laplacian_metric.retrieval.items import Items
from laplacian_metric.retrieval.matching import MatchProbability
from laplacian_metric.retrieval.parquet import export
from laplacian_metric.retrieval.shards import Shards, build_shard, open_shards, shard_folders
from laplacian_metric.retrieval.storage import save
from tests.retrieval.clusters import clusters

ALL = IVF(nlist=3, nprobe=3)  # looks at every list, so that nothing is missed
WIDE = HNSW(search_depth=400)
MIXED = ["flat", ALL, "flat", WIDE]
CUTS = [0, 70, 71, 150, 240]
MATCHING = MatchProbability(0.5, -1.0, 100, 40, 0.3)


def parts(kinds: list[Any], cuts: list[int] = CUTS) -> tuple[Items, np.ndarray, list[Index]]:
    items, _ = clusters(cuts[-1], 6)
    ids = np.random.default_rng(0).permutation(1000)[: cuts[-1]]
    pieces = zip(cuts[:-1], cuts[1:], kinds, strict=True)
    return items, ids, [
        Index(items[a:b], ids[a:b], kind=IVF(nlist=1, nprobe=1) if kind is ALL and b - a < 3 else kind)
        for a, b, kind in pieces
    ]  # fmt: skip


@pytest.mark.parametrize("k", [1, 5, 100])
@pytest.mark.parametrize("order", ["cosine", "expected distance", "match probability"])
@pytest.mark.parametrize("kinds", [["flat"] * 4, [ALL] * 4, MIXED], ids=["flat", "ivf", "mixed"])
def test_shards_answer_as_one_index(kinds: list[Any], order: Any, k: int) -> None:
    items, ids, indexes = parts(kinds)
    shards, whole = Shards(indexes), Index(items, ids)
    for each in (shards, whole):
        each.calibrations = Calibrations(matching=MATCHING)
    queries, _ = clusters(25, 6, seed=1)
    exact = {"candidates": "all"} if order == "expected distance" else {}
    one = shards.query(queries, k, order=order, **exact)  # type: ignore[arg-type]
    other = whole.query(queries, k, order=order, **exact)  # type: ignore[arg-type]
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.rows, other.rows)
    np.testing.assert_allclose(one.similarity, other.similarity, atol=1e-6)
    np.testing.assert_allclose(one.probability, other.probability, rtol=1e-4)  # type: ignore[arg-type]
    own = [int(ids[i]) for i in (3, 70, 239)]
    np.testing.assert_array_equal(shards.query_ids(own, k).ids, whole.query_ids(own, k).ids)
    assert (len(shards), shards.num_shards, shards.dim, shards.source) == (240, 4, 6, items.source)


def test_sets_and_angles_are_those_of_one_index() -> None:
    items, ids, indexes = parts(MIXED)
    labels = clusters(240, 6)[1]
    shards, whole = Shards(indexes), Index(items, ids)
    queries, own = clusters(25, 6, seed=1)
    np.testing.assert_array_equal(
        shards.angle_to_right(queries, own, labels), whole.angle_to_right(queries, own, labels)
    )

    class Caps:
        dim = 6

        def radius(self, kappa: np.ndarray) -> np.ndarray:
            return np.where(kappa > 20, 0.0, 1.0)

    for each in (shards, whole):
        each.calibrations = Calibrations(credible=Caps())  # type: ignore[arg-type]
    one, other = shards.credible_sets(queries), whole.credible_sets(queries)
    np.testing.assert_array_equal(one.offsets, other.offsets)
    np.testing.assert_array_equal(one.ids, other.ids)


def test_saved_shards_are_opened_together(tmp_path: Path) -> None:
    items, ids, indexes = parts(MIXED)
    folders = [tmp_path / f"{i}" for i in range(4)]
    for index, folder in zip(indexes, folders, strict=True):
        index.calibrations = Calibrations(matching=MATCHING)
        save(index, folder)
    shards = open_shards(folders)
    assert shards.matching is None  # was promised for a part only
    queries, _ = clusters(9, 6, seed=1)
    with pytest.raises(NotCalibratedError):
        shards.query(queries, 3, abstain=True)
    np.testing.assert_array_equal(shards.query(queries, 3).ids, Index(items, ids).query(queries, 3).ids)
    assert open_shards(folders, mmap=False, calibrations=Calibrations(matching=MATCHING)).matching == MATCHING
    export(shards, tmp_path / "all.parquet")
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "all.parquet")
    np.testing.assert_array_equal(table["id"].to_numpy(), ids)


def test_shards_that_do_not_belong_together(tmp_path: Path) -> None:
    items, _ = clusters(6)
    one = Index(items[:3])
    with pytest.raises(ValueError, match="no indexes"):
        Shards([])
    with pytest.raises(ValueError, match="3 ids are repeated from shard to shard, the first is 0"):
        Shards([one, Index(items[3:])])
    with pytest.raises(ValueError, match="comes from b and the first part from 5e1f"):
        Shards([one, Index(clusters(3, source="b")[0], [7, 8, 9])])
    with pytest.raises(ValueError, match="has 4 dimensions"):
        Shards([one, Index(clusters(3, 4)[0], [7, 8, 9])])
    with pytest.raises(TypeError, match="are numbers and those given are text"):
        Shards([one, Index(items[3:], ["a", "b", "c"])])
    with pytest.raises(FileNotFoundError, match="no folder"):
        open_shards(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="holds no shards"):
        open_shards(tmp_path)


def test_one_process_makes_one_shard(tmp_path: Path) -> None:
    items, _ = clusters(6)
    shard = build_shard(tmp_path / "deep" / "shards", items)
    assert shard.name == "shard-00000-of-00001"
    assert open_shards(tmp_path / "deep" / "shards").ids.tolist() == list(range(6))
    with pytest.raises(FileExistsError, match="overwrite=True"):
        build_shard(tmp_path / "deep" / "shards", items)
    build_shard(tmp_path / "deep" / "shards", items[:4], overwrite=True)
    assert len(open_shards(tmp_path / "deep" / "shards")) == 4


# --- two processes ---

Work = Callable[[int, Path], Any]


def in_a_process(rank: int, folder: Path, work: Work, results: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )  # fmt: skip
    try:
        results.put((rank, work(rank, folder)))
    except Exception as error:
        results.put((rank, f"{type(error).__name__}: {error}"))
    dist.destroy_process_group()


def in_both(folder: Path, work: Work) -> list[Any]:
    """What the work gives in each of two processes, or its error."""
    import torch.distributed as dist

    if not (hasattr(os, "fork") and dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this needs gloo, and processes that can be forked")
    (folder / "meeting").unlink(missing_ok=True)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=in_a_process, args=(rank, folder, work, results)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    outcomes = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    return [outcomes[0], outcomes[1]]


def share(rank: int) -> Items:
    items, _ = clusters(50, 6)
    return items[:30] if rank == 0 else items[30:]


def test_two_processes_make_two_shards(tmp_path: Path) -> None:
    names = in_both(
        tmp_path, lambda rank, folder: build_shard(folder / "shards", share(rank), kind="hnsw").name
    )
    assert names == ["shard-00000-of-00002", "shard-00001-of-00002"]
    shards = open_shards(tmp_path / "shards")
    assert shards.ids.tolist() == list(range(50))
    queries, _ = clusters(9, 6, seed=1)
    np.testing.assert_array_equal(
        shards.query(queries, 4).ids, Index(clusters(50, 6)[0]).query(queries, 4).ids
    )
    # Another number of processes does not mix with these, and none may be missing.
    with pytest.raises(FileExistsError, match="another number of processes"):
        build_shard(tmp_path / "shards", share(0))
    save(Index(share(0)), tmp_path / "shards" / "shard-00000-of-00001")
    with pytest.raises(ValueError, match="sets of 1 and 2 shards"):
        shard_folders(tmp_path / "shards")
    shutil.rmtree(tmp_path / "shards" / "shard-00000-of-00001")
    shutil.rmtree(tmp_path / "shards" / "shard-00001-of-00002")
    with pytest.raises(FileNotFoundError, match="lacks shard-00001-of-00002"):
        shard_folders(tmp_path / "shards")


def test_if_one_process_fails_none_waits_for_it(tmp_path: Path) -> None:
    def repeated(rank: int, folder: Path) -> str:
        return build_shard(folder / "a", share(rank), [1] * 20 if rank else list(range(30))).name

    def foreign(rank: int, folder: Path) -> str:
        return build_shard(folder / "b", clusters(5, source=f"source {rank}")[0]).name

    first, second = in_both(tmp_path, repeated)
    assert second.startswith("ValueError: 19 ids are repeated")
    assert first.startswith(
        "RuntimeError: process 1 could not make its shard: ValueError: 19 ids are repeated"
    )
    for outcome in in_both(tmp_path, foreign):
        assert "has items of another source or dimension" in outcome
    assert not list((tmp_path / "b").glob("*")) if (tmp_path / "b").exists() else True
