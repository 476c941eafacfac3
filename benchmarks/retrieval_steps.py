"""What the processes of `benchmarks.retrieval` do: each starts anew, imports no torch, and prints JSON.

python -m benchmarks.retrieval_steps STEP FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

K = 10
SEED, CENTRES, ROWS_AT_ONCE = 0, 1000, 1 << 16


def make_data(folder: Path) -> dict[str, Any]:
    """Unit vectors around centres, some of them as queries, and concentrations, as arrays in files."""
    size = json.loads((folder / "size.json").read_text(encoding="utf-8"))
    generator = np.random.default_rng(SEED)
    middle = generator.standard_normal((CENTRES, size["dim"]), dtype=np.float32)
    for name, count in (("vectors", size["vectors"]), ("queries", size["queries"])):
        mapped = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (count, size["dim"]))
        for start in range(0, count, ROWS_AT_ONCE):
            part = mapped[start : start + ROWS_AT_ONCE]
            part[:] = generator.standard_normal(part.shape, dtype=np.float32)
            part += middle[generator.integers(CENTRES, size=len(part))]
            part /= np.linalg.norm(part, axis=1, keepdims=True)
    np.save(folder / "kappa.npy", np.exp(generator.normal(4, 1, size["vectors"])).astype(np.float32))
    return {}


def memory() -> dict[str, int]:
    """Bytes: the peak of resident memory, mapped files included, and what of it is the process's own now."""
    status = Path("/proc/self/status")
    if not status.exists():
        return {}
    fields = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
    return {
        name: 1024 * int(fields[field].split()[0]) for name, field in (("peak", "VmHWM"), ("own", "RssAnon"))
    }


class Clock:
    """Seconds of one step after another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.begun = time.perf_counter()

    def tick(self, name: str) -> None:
        """The end of a step, and the beginning of the next."""
        self.seconds[name] = time.perf_counter() - self.begun
        self.begun = time.perf_counter()

    def done(self) -> dict[str, Any]:
        """The seconds, and the memory that is in use while whoever calls still has its objects."""
        return {"seconds": self.seconds, "memory": memory()}


def build_ours(folder: Path) -> dict[str, Any]:
    clock = Clock()
    import faiss  # noqa: F401 (otherwise the first query would import it)

    from laplacian_metric.retrieval.index import Index
    from laplacian_metric.retrieval.items import Items
    from laplacian_metric.retrieval.storage import save

    vectors, kappa = np.load(folder / "vectors.npy"), np.load(folder / "kappa.npy")
    clock.tick("read")
    index = Index(Items(vectors, kappa, 1 / kappa.astype(np.float64), None, "benchmark"))
    clock.tick("build")
    save(index, folder / "index", overwrite=True)
    clock.tick("save")
    return clock.done()


def build_faiss(folder: Path) -> dict[str, Any]:
    clock = Clock()
    import faiss

    vectors = np.load(folder / "vectors.npy")
    clock.tick("read")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    clock.tick("build")
    faiss.write_index(index, str(folder / "plain.faiss"))
    clock.tick("save")
    return clock.done()


def answer_ours(folder: Path) -> dict[str, Any]:
    clock = Clock()
    import faiss  # noqa: F401 (otherwise the first query would import it)

    from laplacian_metric.retrieval.items import Items
    from laplacian_metric.retrieval.storage import load

    queries = np.load(folder / "queries.npy")
    kappa = np.full(len(queries), 50, dtype=np.float32)
    query_items = Items(queries, kappa, 1 / kappa.astype(np.float64), None, "benchmark")
    clock.tick("import")
    index = load(folder / "index")
    clock.tick("load")
    first = index.query(query_items[:1], K)
    clock.tick("first query")
    answers = index.query(query_items, K)
    clock.tick("queries")
    assert (answers.rows[:1] == first.rows).all()
    np.save(folder / "ours.npy", answers.rows)
    return clock.done()


def orders_ours(folder: Path) -> dict[str, Any]:
    """What FAISS alone has no counterpart of."""
    from laplacian_metric.retrieval.items import Items
    from laplacian_metric.retrieval.storage import load

    index, queries = load(folder / "index"), np.load(folder / "queries.npy")
    kappa = np.full(len(queries), 50, dtype=np.float32)
    query_items = Items(queries, kappa, 1 / kappa.astype(np.float64), None, "benchmark")
    index.query(query_items[:1], K)
    clock = Clock()
    index.query(query_items[:1], K, order="expected distance")
    clock.tick("first by expected distance")
    index.query(query_items, K, order="expected distance")
    clock.tick("by expected distance")
    index.query(query_items, K, order="match probability")
    clock.tick("by match probability")
    return clock.done()


def answer_faiss(folder: Path) -> dict[str, Any]:
    clock = Clock()
    import faiss

    queries = np.load(folder / "queries.npy")
    clock.tick("import")
    index = faiss.read_index(str(folder / "plain.faiss"))
    clock.tick("load")
    index.search(queries[:1], K)
    clock.tick("first query")
    _, rows = index.search(queries, K)
    clock.tick("queries")
    np.save(folder / "plain.npy", rows)
    return clock.done()


def start_ours(folder: Path) -> dict[str, Any]:
    """What a service does before its first answer."""
    from laplacian_metric.retrieval.storage import load

    index = load(folder / "index")
    index.query_ids([0], K)
    return Clock().done()


def start_faiss(folder: Path) -> dict[str, Any]:
    import faiss

    queries = np.load(folder / "queries.npy", mmap_mode="r")
    index = faiss.read_index(str(folder / "plain.faiss"))
    index.search(queries[:1], K)
    return Clock().done()


STEPS: dict[str, Callable[[Path], dict[str, Any]]] = {
    step.__name__: step
    for step in (
        make_data,
        build_ours,
        build_faiss,
        answer_ours,
        answer_faiss,
        orders_ours,
        start_ours,
        start_faiss,
    )
}


def main(step: str, folder: str) -> dict[str, Any]:
    """Run a step."""
    result = STEPS[step](Path(folder))
    assert "torch" not in sys.modules
    return result


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2])))
