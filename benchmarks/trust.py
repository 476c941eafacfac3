"""Time of `Trust` beside the FAISS searches that it cannot do without.

    python -m benchmarks.trust --out figures

One query, its answer with the items' scales stored, against plain exact FAISS searches in the features and in the
embeddings; and a fit against the searches of its validation queries and of the items whose scales these reach.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import faiss
import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.common import mebibytes, median_seconds, peak_extra_memory, report
from laplacian_metric.core.labelled_gallery import Head, LabelledGallery
from laplacian_metric.core.neighbours import LOCAL, VOTERS
from laplacian_metric.trust import Trust

WIDTH, DIM, CLASSES = 512, 64, 1000
ITEMS, FITTED, QUERIES = 1_000_000, 100_000, 1_000
TITLE = "Trust beside FAISS"
NOTE = (
    f"Features of {WIDTH} numbers around {CLASSES:,} centres, embeddings of {DIM}. 'trust' is the answer or the fit, "
    "'searches' the exact FAISS searches that it needs: 50 neighbours in the embeddings, 10 in the features and, for a "
    "fit, 11 of every item among the 10 nearest of a query. Medians in ms of interleaved runs; memory is the peak "
    "beyond the gallery, in MiB."
)


def clusters(count: int, generator: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return features (N, H) around centres, a block at a time, and their classes."""
    centres = np.random.default_rng(1).standard_normal((CLASSES, WIDTH), dtype=np.float32)
    labels = generator.integers(0, CLASSES, count)
    features = np.empty((count, WIDTH), dtype=np.float32)
    for start in range(0, count, 1 << 16):
        some = slice(start, start + (1 << 16))
        noise = generator.standard_normal((len(labels[some]), WIDTH), dtype=np.float32)
        features[some] = 0.35 * centres[labels[some]] + noise
    return features, labels


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows of length one."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def index_of(rows: NDArray[np.float32]) -> Any:
    """Return FAISS' exact index of directions."""
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(unit(rows))
    return index


def measured(name: str, trust: Any, searches: Any, repeats: int) -> dict[str, Any]:
    """Return one row: both ways interleaved."""
    seconds = median_seconds({"trust": trust, "searches": searches}, repeats=repeats)
    return {
        "task": name,
        "trust": seconds["trust"] * 1e3,
        "searches": seconds["searches"] * 1e3,
        "trust / searches": seconds["trust"] / seconds["searches"],
        "memory": mebibytes(peak_extra_memory(trust)),
    }


def main(
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    items: Annotated[int, typer.Option(help="Of the gallery that is queried.")] = ITEMS,
    fitted: Annotated[int, typer.Option(help="Items of the gallery that is fitted to.")] = FITTED,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved runs.")] = 5,
) -> None:
    """Measure a fit and single queries."""
    faiss.omp_set_num_threads(1)
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((DIM, WIDTH), dtype=np.float32) / WIDTH**0.5
    head = Head(weight)
    (h, labels), (query_h, query_labels) = (clusters(count, generator) for count in (items, QUERIES))

    few, few_labels = h[:fitted], labels[:fitted]
    in_h, in_z = index_of(few), index_of(few @ weight.T)
    directions, embedded = unit(query_h), unit(query_h @ weight.T)

    def searches() -> None:
        for index, queries, k in ((in_h, directions, LOCAL), (in_z, embedded, VOTERS)):
            rows = np.unique(index.search(queries, k)[1][:, :LOCAL])
            index.search(np.stack([index.reconstruct(int(row)) for row in rows]), LOCAL + 1)

    def fit() -> Trust:
        return Trust.fit((few, few_labels), (query_h, query_labels), encoder=head)

    rows = [measured(f"fit, {fitted:,} items, {QUERIES:,} queries", fit, searches, repeats)]
    trust = fit()
    trust.gallery = LabelledGallery.of(h, labels, head)
    for scales in trust.gallery.scales.values():
        scales[:] = [0.5, 0.51]  # as if they were stored: their values cost the same
    in_h, in_z = index_of(h), index_of(h @ weight.T)
    for count in (1, 100):
        some, also = directions[:count], embedded[:count]
        rows.append(
            measured(
                f"{count} of queries, {items:,} items",
                lambda count=count: trust(query_h[:count]),
                lambda some=some, also=also: (in_h.search(some, LOCAL), in_z.search(also, VOTERS)),
                repeats,
            )
        )
    report(TITLE, rows, out, "benchmark_trust", NOTE)


if __name__ == "__main__":
    typer.run(main)
