"""Engines with `Trust` on top: load, query and trust beside the engine alone, and what its misses cost.

    python -m benchmarks.engines --out figures --large 1000000 --small 20000

Every row is measured in a process of its own and kept in the folder --work, so that the command resumes where it was
interrupted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.common import median_seconds, report
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.labelled_gallery import Head
from laplacian_metric.core.neighbours import LOCAL, VOTERS
from laplacian_metric.retrieval import IVF, Items
from laplacian_metric.retrieval.engines import ArrayEngine, Collection, create
from laplacian_metric.trust import Trust
from laplacian_metric.trust.calibration import calibration_error

WIDTH, DIM, CLASSES, SIGNAL = 128, 64, 100, 0.8
VALIDATION, QUERIES, RECALLED = 200, 500, 100
MANY = 50_000  # items from which on there are half as many queries
TITLE = "Engines, and Trust on top of them"
NOTE = (
    f"Features of {WIDTH} numbers around {CLASSES:,} centres, embeddings of {DIM}; one thread. 'load' writes both "
    "spaces and all columns. 'engine' is the engine's own search, 50 neighbours in both spaces, for "
    "one query of a batch of 50; 'trust' is the answer of Trust over it with the local scales stored, which takes the "
    "same two searches, the margins and the columns; 'first' is the same where no scale is stored yet, which are then "
    "computed and kept. Medians in ms a query of interleaved runs ('first' once). 'recall' is that of the 10 nearest "
    f"items in the embeddings of {RECALLED} queries. 'right' is the share of nearest items that are of the query's "
    f"class. 'ECE' is the calibration error of the probability on {QUERIES} new queries, or half of them from "
    f"{MANY:,} items on: 'as exact' "
    "with a Trust that was calibrated by exact search (left out for very many items), 'own' calibrated on what the "
    f"engine returns, both on {VALIDATION} queries. Memory is the peak of the process and its children, in MiB."
)
SMALL = ("exact:", "faiss:ivf", "faiss:hnsw", "faiss:few", "qdrant::memory:", "milvus:flat", "milvus:hnsw")
# Inverted lists with settings of our own: 1,000 lists, of which 16 are looked at; and 4 of the usual number.
KINDS = {"lists": IVF(nlist=1000, nprobe=16), "few": IVF(nprobe=4)}
EXACT_REFERENCE = 100_000  # items up to which Trust is calibrated by exact search, too
LARGE = ("faiss:lists", "milvus:lists")


def clusters(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return features (N, H) around centres, a block at a time, and their classes."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((CLASSES, WIDTH), dtype=np.float32)
    labels = generator.integers(0, CLASSES, count)
    features = np.empty((count, WIDTH), dtype=np.float32)
    for start in range(0, count, 1 << 16):
        some = slice(start, start + (1 << 16))
        noise = generator.standard_normal((len(labels[some]), WIDTH), dtype=np.float32)
        features[some] = SIGNAL * centres[labels[some]] + noise
    return features, labels


def head() -> Head:
    """Return the head that makes embeddings of features."""
    return Head(np.random.default_rng(2).standard_normal((DIM, WIDTH), dtype=np.float32) / WIDTH**0.5)


def items_of(features: NDArray[np.float32]) -> Items:
    """Return embeddings as items."""
    embedded = head().embed(features)
    mean = (embedded.rows / embedded.norms[:, None]).astype(np.float32)
    kappa = np.full(len(mean), 20.0)
    return Items(mean, kappa, 1 / kappa, None, "benchmark")


def filled(name: str, count: int, folder: Path) -> tuple[Collection, float]:
    """Return a collection and the seconds that it took to load."""
    features, labels = clusters(count, 0)
    items = items_of(features)
    engine, _, place = name.partition(":")
    options: dict[str, Any] = {}
    address = name
    if engine == "milvus":
        address = f"milvus:{folder / 'items.db'}"
    if engine == "milvus" or place in KINDS:
        address = address if engine == "milvus" else "faiss:ivf"
        options["kind"] = KINDS.get(place, place)
    begun = time.perf_counter()
    collection = create(address, items, features=features, labels=labels, **options)
    return collection, time.perf_counter() - begun


def alone(collection: Collection, z: NDArray[np.float32], h: NDArray[np.float32]) -> Callable[[], object]:
    """Return a call of the engine's own search in both spaces, without columns."""
    engine: Any = collection.engine
    searches = (("z", z, VOTERS), ("h", h, VOTERS))
    if isinstance(engine, ArrayEngine):
        import faiss

        if engine.exact:
            rows = engine.records.vectors
            return lambda: [
                faiss.knn(q, rows[s], k, metric=faiss.METRIC_INNER_PRODUCT) for s, q, k in searches
            ]
        built = engine._table.built
        return lambda: [built[s].search(q, k) for s, q, k in searches]
    if engine.name == "qdrant":
        from qdrant_client import models

        def ask(s: str, q: NDArray[np.float32], k: int) -> Any:
            requests = [models.QueryRequest(query=row, using=s, limit=k) for row in q.tolist()]
            return engine.client.query_batch_points(engine.collection, requests=requests)

        return lambda: [ask(*search) for search in searches]
    return lambda: [
        engine.client.search(
            engine.collection, data=q.tolist(), anns_field=s, limit=k, search_params=engine._depth(k)
        )
        for s, q, k in searches
    ]


def measured(name: str, count: int, folder: Path) -> dict[str, Any]:
    """Return one row of the table."""
    import faiss
    import torch

    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    collection, loaded = filled(name, count, folder)
    part = 1 if count < MANY else 2
    (h, labels), (valid_h, valid_labels) = clusters(QUERIES // part, 10), clusters(VALIDATION // part, 11)
    queries = items_of(h)
    directions = (h / np.linalg.norm(h, axis=1, keepdims=True)).astype(np.float32)
    few = slice(0, 50)
    search = alone(collection, queries.mean[few], directions[few])

    some = queries[:RECALLED]
    approximate = np.concatenate(
        [collection.nearest(some[slice(s, s + 50)], LOCAL).ids for s in range(0, RECALLED, 50)]
    )
    rows = items_of(clusters(count, 0)[0]).mean
    exact = faiss.knn(some.mean, rows, LOCAL, metric=faiss.METRIC_INNER_PRODUCT)[1]
    del rows
    pairs = zip(approximate.tolist(), exact.tolist(), strict=True)
    recall = np.mean([len(set(ours) & set(theirs)) / LOCAL for ours, theirs in pairs])

    collection.fit_trust((valid_h, valid_labels), encoder=head())
    trust = collection.trust
    assert trust is not None
    begun = time.perf_counter()
    trust(h[few])
    first = time.perf_counter() - begun
    seconds = median_seconds({"trust": lambda: trust(h[few]), "engine": search}, repeats=3, budget=60)
    answer = trust(h)
    right = np.array(answer.labels) == labels
    own = calibration_error(answer.probability, right)
    as_exact = own if collection.engine.exact else None
    if as_exact is None and count <= EXACT_REFERENCE:
        features, classes = clusters(count, 0)
        reference = create("exact:", items_of(features), features=features, labels=classes)
        del features
        reference.fit_trust((valid_h, valid_labels), encoder=head())
        assert reference.trust is not None
        as_exact = calibration_error(used_over(reference.trust, collection)(h).probability, right)
    return {
        "collection": f"{name}, {count:,} items",
        "load s": loaded,
        "engine": seconds["engine"] * 1e3 / 50,
        "trust": seconds["trust"] * 1e3 / 50,
        "trust / engine": seconds["trust"] / seconds["engine"],
        "first": first * 1e3 / 50,
        "recall": float(recall),
        "right": float(right.mean()),
        "ECE as exact": as_exact,
        "ECE own": own,
    }


def used_over(trust: Trust, collection: Collection) -> Trust:
    """Return a calibration as it is over another engine with the same items."""
    from dataclasses import replace

    return replace(trust, gallery=collection.gallery)


def in_a_process(name: str, count: int, out: Path) -> dict[str, Any]:
    """Return the row that a process of its own measured, with its peak memory."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.engines",
        "--row",
        name,
        "--large",
        str(count),
        "--work",
        str(out),
    ]
    process = subprocess.Popen(command, start_new_session=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, group_memory(process.pid))
        time.sleep(0.2)
    if process.returncode:
        raise RuntimeError(f"{name} with {count} items failed with exit code {process.returncode}")
    row: dict[str, Any] = json.loads((out / file_name(name, count)).read_text(encoding="utf-8"))
    row["memory"] = round(peak / 2**20)
    write(out / file_name(name, count), row)
    return row


def group_memory(group: int) -> int:
    """Return the resident bytes of all processes of a group."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


def file_name(name: str, count: int) -> str:
    """Return the name of the file of a row."""
    return f"{name.replace(':', '_')}-{count}.json"


def write(path: Path, row: dict[str, Any]) -> None:
    """Write a row, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(row), encoding="utf-8")


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    large: Annotated[int, typer.Option(help="Items of FAISS and Milvus.")] = 1_000_000,
    medium: Annotated[int, typer.Option(help="Items of FAISS and Milvus.")] = 100_000,
    small: Annotated[int, typer.Option(help="Items of all engines.")] = 20_000,
    work: Annotated[Path | None, typer.Option(help="Folder of the rows that are measured.")] = None,
    row: Annotated[str | None, typer.Option(help="Measure this engine only, in this process.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Write the rows that were measured so far.")] = False,
) -> None:
    """Measure all engines."""
    work = Path(tempfile.mkdtemp()) if work is None else work
    work.mkdir(parents=True, exist_ok=True)
    if row is not None:
        with tempfile.TemporaryDirectory(dir=work) as folder:
            write(work / file_name(row, large), measured(row, large, Path(folder)))
        return
    rows = []
    sizes = {small: SMALL, medium: LARGE, large: LARGE}
    for name, count in ((name, count) for count, names in sizes.items() for name in names):
        path = work / file_name(name, count)
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if "memory" in stored or not as_is:
            rows.append(stored if "memory" in stored else in_a_process(name, count, work))
            Console().print(rows[-1])
    report(TITLE, rows, out, "benchmark_engines", NOTE)


if __name__ == "__main__":
    typer.run(main)
