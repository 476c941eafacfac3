"""An index of a million distributions beside FAISS alone: build, save, load, verify, ask; and what memory it takes.

    python -m benchmarks.retrieval --out figures

Every process starts anew, so that imports and memory are those of a service. With --vectors 100000 it takes seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.common import mebibytes, report
from benchmarks.retrieval_steps import K

TITLE = "A flat index of distributions beside FAISS' own"
NOTE = (
    "'FAISS' is IndexFlatIP on the same vectors: add, write_index, read_index, search. Ours also checks every vector, "
    "keeps kappa, uncertainty and ids, digests every file with SHA-256 and has the disk write it through ('save'), and "
    "compares all digests before it maps the files ('load'), where FAISS reads them into memory. A row 'process' is "
    "one from the start of Python, with its memory in MiB: 'peak' counts pages of mapped files, which the system takes "
    "back when it needs them; 'own' is what of it is the process's own at its end. Processes took turns, seconds and "
    "MiB are medians; files were in the system's cache. No process imports torch."
)
PROCESSES = ("build", "answer", "orders", "start")
Found = dict[str, dict[str, list[float]]]


def run(step: str, folder: Path, threads: int) -> dict[str, Any]:
    """A step in a process of its own, with the seconds from its start to its end."""
    command = [sys.executable, "-m", "benchmarks.retrieval_steps", step, str(folder)]
    counts = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "MKL")}
    root = Path(__file__).resolve().parents[1]
    begun = time.perf_counter()
    done = subprocess.run(
        command, cwd=root, env={**os.environ, **counts}, check=True, stdout=subprocess.PIPE, text=True
    )
    return {**json.loads(done.stdout), "whole": time.perf_counter() - begun}


def measure(folder: Path, threads: int, repeats: int) -> dict[str, Found]:
    """For ours and for FAISS alone: of each process the seconds of its parts, of the whole, and memory."""
    measurements: dict[str, Found] = {
        who: defaultdict(lambda: defaultdict(list)) for who in ("ours", "faiss")
    }
    for _ in range(repeats):
        for process in PROCESSES:
            for who, numbers in measurements.items():
                if process == "orders" and who == "faiss":
                    continue
                reported = run(f"{process}_{who}", folder, threads)
                for name, value in reported["seconds"].items():
                    numbers[process][name].append(value)
                for name in ("peak", "own"):
                    numbers[process][name].append(reported["memory"].get(name, np.nan))
                numbers[process]["whole"].append(reported["whole"])
    return measurements


def rows_of(measurements: dict[str, Found], num_queries: int) -> list[dict[str, Any]]:
    """A row for every step, and one for each process."""
    names = {
        "build": [("build", "build"), ("save", "save"), ("whole", "process: read, build, save")],
        "answer": [
            ("load", "load and verify"),
            ("first query", "first query"),
            ("queries", f"{num_queries:,} queries"),
            ("whole", "process: import, load, all queries"),
        ],
        "orders": [
            ("first by expected distance", "first query by expected distance"),
            ("by expected distance", f"{num_queries:,} queries by expected distance"),
            ("by match probability", f"{num_queries:,} queries by match probability, 100 candidates"),
            ("whole", "process: import, load, queries in all orders"),
        ],
        "start": [("whole", "process: import, load, one query")],
    }
    rows = []
    for process, steps in names.items():
        for name, what in steps:
            ours, beside = (_median(measurements[who][process].get(name)) for who in ("ours", "faiss"))
            row: dict[str, Any] = {"what": what, "seconds": ours, "FAISS seconds": beside}
            row["ratio"] = None if ours is None or beside is None else round(ours / beside, 2)
            for kind in ("peak", "own"):
                for who, title in (("ours", f"{kind} MiB"), ("faiss", f"FAISS {kind} MiB")):
                    value = _median(measurements[who][process].get(kind)) if name == "whole" else None
                    row[title] = mebibytes(None if value is None else int(value))
            rows.append(row)
    return rows


def _median(values: list[float] | None) -> float | None:
    if not values or any(value != value for value in values):
        return None
    return statistics.median(values)


def same_answers(folder: Path) -> float:
    """The share of equal rows in both answers."""
    ours, beside = np.load(folder / "ours.npy"), np.load(folder / "plain.npy")
    return float((ours == beside).mean())


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    vectors: Annotated[int, typer.Option(help="How many items.")] = 1_000_000,
    dim: Annotated[int, typer.Option(help="Dimensions.")] = 128,
    queries: Annotated[int, typer.Option(help="How many queries at once.")] = 1000,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved processes.")] = 5,
    threads: Annotated[int, typer.Option(help="Of the searches.")] = 1,
    scratch: Annotated[
        Path | None, typer.Option(help="Where files go meanwhile: some 2 KiB for an item.")
    ] = None,
) -> None:
    """Measure, print, and write where asked to."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        size = {"vectors": vectors, "dim": dim, "queries": queries}
        (folder / "size.json").write_text(json.dumps(size), encoding="utf-8")
        run("make_data", folder, threads)
        measurements = measure(folder, threads, repeats)
        rows = rows_of(measurements, queries)
        equal = same_answers(folder)
    title = f"{TITLE}: {vectors:,} vectors of {dim} dimensions, k = {K}, {threads} threads"
    note = (
        f"{NOTE} {100 * equal:.2f} % of the answers' rows are the same; the others are ties but for rounding."
    )
    report(title, rows, out, "benchmark_retrieval", note)


if __name__ == "__main__":
    typer.run(main)
