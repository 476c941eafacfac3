"""Galleries beside the engines under them: what checks and exact distances add to the engine's own search.

    python -m benchmarks.galleries --out figures --items 100000 --work FOLDER

Every row is measured in a process of its own and kept in the folder --work, so that the same command resumes.
"""

from __future__ import annotations

import json
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

from benchmarks.common import median_seconds, report, write_text
from laplacian_metric.core.array_gallery import ArrayGallery
from laplacian_metric.galleries import open_gallery

DIM, CLASSES, SIGNAL, NEIGHBOURS, BATCH, RECALLED = 384, 500, 0.6, 50, 50, 10
TITLE = "Galleries beside the engines under them"
NOTE = (
    f"Vectors of {DIM} numbers around {CLASSES} centres. 'load' writes ids, vectors and labels, 'index' is the first "
    "query, which builds the approximate index where the engine does not build it while it loads. 'own' is the "
    f"engine's own search for {NEIGHBOURS} neighbours with vectors and labels, by its own client, with the same search "
    "depth; 'gallery' is `gallery.search`: the same, exact distances in float64, and checks. Medians in ms of "
    f"interleaved runs, for one query and for {BATCH} queries sent together; other programs used the two processors at "
    f"the same time: read the ratios. 'recall' is that of the {RECALLED} nearest items."
)
PLACES = {
    "arrays": "arrays:",
    "FAISS, flat": "faiss:Flat",
    "FAISS, inverted lists": "faiss:IVF512,Flat",
    "FAISS, graph": "faiss:HNSW32",
    "pgvector 0.6.2, graph": "postgresql#hnsw",
    "Qdrant, local mode (exact)": "qdrant:",
    "milvus-lite, graph": "milvus:{folder}/items.db#HNSW",
    "LanceDB, graph in lists": "lancedb:{folder}#IVF_HNSW_SQ(num_partitions=16)",
    "Chroma, graph": "chroma:{folder}",
}


def clusters(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return vectors (N, D) around centres, and their classes."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((CLASSES, DIM), dtype=np.float32)
    labels = generator.integers(0, CLASSES, count)
    return SIGNAL * centres[labels] + generator.standard_normal((count, DIM), dtype=np.float32), labels


def own_search(gallery: Any, queries: NDArray[np.float32], k: int) -> Callable[[], object]:
    """Return a call of the engine's own client that finds the neighbours with their vectors and labels."""
    match type(gallery).__name__:
        case "ArrayGallery":
            rows = gallery.items.vectors
            unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

            def search() -> Any:
                cosines = queries @ unit.T
                nearest = np.argpartition(cosines, -k, axis=1)[:, -k:]
                order = np.argsort(-np.take_along_axis(cosines, nearest, axis=1), axis=1)
                return rows[np.take_along_axis(nearest, order, axis=1)]

            return search
        case "FaissGallery":
            return lambda: gallery.items.vectors[gallery._index.search(queries, k)[1]]
        case "PgvectorGallery":
            connection = gallery._connection()
            text = "SELECT id, vector, label FROM items ORDER BY vector <=> %s::vector LIMIT %s"

            def ask() -> Any:
                with connection.pipeline():
                    cursors = [connection.cursor(binary=True) for _ in queries]
                    for cursor, query in zip(cursors, queries, strict=True):
                        cursor.execute(text, [str(query.tolist()), k])
                return [
                    [np.frombuffer(row[1], ">f4", offset=4) for row in cursor.fetchall()]
                    for cursor in cursors
                ]

            return ask
        case "QdrantGallery":
            from qdrant_client import models

            return lambda: gallery.client.query_batch_points(
                "items",
                requests=[
                    models.QueryRequest(query=q, using="vector", limit=k, with_vector=True, with_payload=True)
                    for q in queries.tolist()
                ],
            )
        case "MilvusGallery":
            options = {"anns_field": "vector", "limit": k, "output_fields": ["id", "vector", "label"]}
            options |= {"search_params": {"params": {"ef": 2 * k}}}

            def found() -> Any:  # the client takes the vectors out of the response when they are read
                responses = gallery.client.search("items", data=list(queries), **options)
                return [[hit["entity"]["vector"] for hit in response] for response in responses]

            return found
        case "LancedbGallery":
            return lambda: gallery.table.search(queries).distance_type("cosine").limit(k).to_arrow()
    include = ["embeddings", "metadatas"]
    return lambda: gallery.client.get_collection("items", embedding_function=None).query(
        query_embeddings=queries, n_results=k, include=include
    )


def measured(name: str, count: int, folder: Path) -> dict[str, Any]:
    """Return one row of the table."""
    address = PLACES[name].format(folder=folder)
    if address.startswith("postgresql"):
        import pgserver

        folder.chmod(0o755)
        uri = pgserver.get_server(folder / "postgresql").get_uri()
        address = f"{uri}&options=-c%20maintenance_work_mem%3D1GB#hnsw"
    rows, labels = clusters(count, 0)
    queries = clusters(BATCH, 2)[0]
    gallery = open_gallery(address, dim=DIM)
    begun = time.perf_counter()
    for start in range(0, count, 10_000):
        some = slice(start, start + 10_000)
        gallery.add(np.arange(count)[some], rows[some], [f"class {label}" for label in labels[some]])
    loaded = time.perf_counter()
    gallery.search(queries[:1], NEIGHBOURS)
    indexed = time.perf_counter()
    exact = ArrayGallery(rows).search(queries, RECALLED).ids.tolist()
    found = gallery.search(queries, RECALLED).ids.tolist()
    recall = np.mean([len(set(a) & set(b)) / RECALLED for a, b in zip(found, exact, strict=True)])
    row = {"gallery": f"{name}, {count:,} items", "load s": loaded - begun, "index s": indexed - loaded}
    for size in (1, BATCH):
        few = queries[:size]
        runs = {
            "own": own_search(gallery, few, NEIGHBOURS),
            "gallery": lambda q=few: gallery.search(q, NEIGHBOURS),
        }
        seconds = median_seconds(runs, repeats=15, warm_up=2, budget=60)
        row |= {f"own {size}": 1e3 * seconds["own"], f"gallery {size}": 1e3 * seconds["gallery"]}
        row |= {f"ratio {size}": seconds["gallery"] / seconds["own"]}
    return row | {"recall": float(recall)}


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    items: Annotated[int, typer.Option(help="Items in each gallery.")] = 100_000,
    work: Annotated[Path | None, typer.Option(help="Folder of the rows that were measured.")] = None,
    row: Annotated[str | None, typer.Option(help="Measure this gallery only, in this process.")] = None,
) -> None:
    """Measure all galleries."""
    work = Path(tempfile.mkdtemp()) if work is None else work
    work.mkdir(parents=True, exist_ok=True)
    places = {name: work / f"{number}_{items}.json" for number, name in enumerate(PLACES)}
    if row is not None:
        with tempfile.TemporaryDirectory() as folder:
            write_text(places[row], json.dumps(measured(row, items, Path(folder))))
        return
    for name, path in places.items():
        if not path.exists():
            command = [
                sys.executable,
                "-m",
                "benchmarks.galleries",
                "--items",
                str(items),
                "--work",
                str(work),
            ]
            subprocess.run([*command, "--row", name], check=False)
        Console().print(path.read_text(encoding="utf-8") if path.exists() else f"{name} failed")
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in places.values() if path.exists()]
    report(TITLE, rows, out, "benchmark_galleries", NOTE)


if __name__ == "__main__":
    typer.run(main)
