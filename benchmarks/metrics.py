"""Time and memory of all metrics at once, beside faiss' own time for the same searches.

    python -m benchmarks.metrics --data DATA --out figures

Embeddings are random projections of the FashionMNIST test images, the joint samples those of slightly moved
projections: what the metrics cost does not depend on how good the embeddings are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import faiss
import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.common import mebibytes, median_seconds, peak_extra_memory, report
from laplacian_metric import metrics
from laplacian_metric.core.search import search

IMAGES_HEADER, LABELS_HEADER = 16, 8
KS = (1, 5, 10, 50)
TITLE = "All metrics of the FashionMNIST test set beside the searches that they need"
NOTE = (
    "'faiss' is IndexFlatIP in float32 for the same searches: one as deep as the search below it, and two neighbours "
    "of every query in every sample (the query itself is one of them). 'all metrics' is metrics.evaluate: recall, mAP "
    f"and ECE@k at k = {', '.join(map(str, KS))}, mAP@R and R-precision (as deep as a class has images), R-AUROC, "
    "sparsification, retrieval ECE, AUROC, average precision, crop test and rank correlation; 'with intervals' adds "
    "bootstrap intervals of each. Runs took turns in one process, times are medians in seconds, the ratio is to the "
    "row of faiss above, and memory is the peak beyond what was there before, in MiB."
)


def read_test_set(data: Path) -> tuple[Tensor, Tensor]:
    """Pixels (10000, 784), centred, and labels, from the IDX files in torchvision's layout."""
    folder = data / "FashionMNIST" / "raw"
    pixels, labels = (
        torch.from_numpy(np.fromfile(folder / f"t10k-{name}-ubyte", dtype=np.uint8)[header:])
        for name, header in (("images-idx3", IMAGES_HEADER), ("labels-idx1", LABELS_HEADER))
    )
    images = pixels.view(len(labels), -1).float() / 255
    return images - images.mean(0), labels.long()


class Problem:
    """One set of embeddings with all that can be judged about it."""

    def __init__(self, images: Tensor, labels: Tensor, dim: int, num_samples: int) -> None:
        generator = torch.Generator().manual_seed(dim)
        weight = torch.randn(images.shape[1], dim, generator=generator)
        self.labels = labels
        self.embeddings = normalize(images @ weight, dim=1)
        moved = (weight + 0.1 * torch.randn(weight.shape, generator=generator) for _ in range(num_samples))
        self.samples = [normalize(images @ other, dim=1) for other in moved]
        self.scores = torch.rand(4, len(labels), generator=generator)

    def one_by_one(self) -> Iterator[Tensor]:
        yield from self.samples

    def evaluate(self, resamples: int) -> metrics.Evaluation:
        uncertainty, out, crop, entropy = self.scores
        return metrics.evaluate(
            self.embeddings,
            self.labels,
            uncertainty,
            samples=self.one_by_one(),
            ood_uncertainty=out,
            crop_uncertainty=crop,
            label_entropy=entropy,
            ks=KS,
            resamples=resamples,
        )

    def consensus(self) -> metrics.Consensus:
        return metrics.consensus(self.one_by_one(), self.labels)

    def faiss_search(self, k: int) -> None:
        flat_search(self.embeddings, k)

    def faiss_samples(self) -> None:
        for sample in self.samples:
            flat_search(sample, 2)

    def faiss_all(self, deepest: int) -> None:
        self.faiss_search(deepest)
        self.faiss_samples()


def flat_search(vectors: Tensor, k: int) -> None:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.numpy())
    index.search(vectors.numpy(), k)


def measure(problem: Problem, resamples: int, repeats: int, budget: float) -> list[dict[str, Any]]:
    """Searches alone, then everything, each beside faiss."""
    dim, number = problem.embeddings.shape[1], len(problem.samples)
    deepest = int(problem.labels.bincount().max())  # the positives of a query, and the query itself
    groups: list[dict[str, Callable[[], object]]] = [
        {
            "faiss, k = 51": partial(problem.faiss_search, 51),
            "search, k = 50": partial(search, problem.embeddings, 50),
        },
        {
            f"faiss, {number} samples": problem.faiss_samples,
            f"consensus of {number} samples": problem.consensus,
        },
        {
            "faiss, all": partial(problem.faiss_all, deepest),
            "all metrics": partial(problem.evaluate, 0),
            "all metrics, with intervals": partial(problem.evaluate, resamples),
        },
    ]
    rows = []
    for runs in groups:
        seconds = median_seconds(runs, repeats=repeats, budget=budget)
        base = next(iter(seconds.values()))
        for name, value in seconds.items():
            memory = mebibytes(peak_extra_memory(runs[name]))
            row = {"dimensions": dim, "what": name, "seconds": value, "ratio": value / base}
            rows.append({**row, "peak extra MiB": memory})
    return rows


def main(
    data: Annotated[
        Path, typer.Option(envvar="LAPLACIAN_METRIC_DATA", help="Folder that holds FashionMNIST/raw.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the table.")] = None,
    images: Annotated[int, typer.Option(help="How many test images, from the first.")] = 10_000,
    samples: Annotated[int, typer.Option(help="Joint samples.")] = 100,
    resamples: Annotated[int, typer.Option(help="Bootstrap draws.")] = 1000,
    repeats: Annotated[int, typer.Option(help="Rounds of interleaved runs.")] = 5,
    budget: Annotated[float, typer.Option(help="Seconds after which no further round begins.")] = 300.0,
) -> None:
    """Measure, print, and write where asked to."""
    pixels, labels = read_test_set(data)
    rows = []
    for dim in (3, 64):
        problem = Problem(pixels[:images], labels[:images], dim, samples)
        rows += measure(problem, resamples, repeats, budget)
    title = f"{TITLE}: {len(problem.labels):,} images, {samples} joint samples"
    report(title, rows, out, "benchmark_metrics", NOTE)


if __name__ == "__main__":
    typer.run(main)
