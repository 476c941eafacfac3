"""What the images that are searched do to retrieval: test images among test images, and among training images.

    python -m experiments.gallery run --data DATA --cache WORK --out figures
    python -m experiments.gallery table --out figures

WORK is that of `experiments.harness run`; a network that is not there is trained first. The LAM paper does not say
among which images it searches. As many training images as there are test images tell the number of images from what
they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import origin, save
from experiments import harness as runs
from experiments.arguments import CELLS, HERE, kept, kept_results, run_or_table
from experiments.harness.tables.descriptions import read_published
from experiments.harness.tables.seeds import spread
from laplacian_metric.metrics.ranking import map_at_k

NAME = "gallery"
KS = (1, 5, 10)
# Networks and their seeds, and the table of the LAM paper whose deterministic network they stand beside.
NETWORKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "cifar10/deterministic_unsquared": ("lam_table_2_cifar10", (0, 1, 2)),
    "fashion_mnist/deterministic": ("lam_table_2_fashion_mnist", (0,)),
}
TEST, AS_MANY, TRAINING = "the other test images", "as many training images", "all training images"
GALLERIES = (TEST, AS_MANY, TRAINING)
TITLE = "Test images searched among test images and among training images"
NOTE = """\
The same networks and the same queries, all test images; only the images that are searched differ. "As many training
images" are at even steps. Mean ± standard deviation over the seeds that were run; the difference from searching the
other test images is paired by seed, with its 95 % t interval. Seed 0 of CIFAR-10 is
a network that was trained anew with the same settings as that of the other tables. "Published" are the numbers of the
LAM paper, which does not say among which images it searches."""


def precisions(
    queries: Tensor, labels: Tensor, gallery: Tensor, gallery_labels: Tensor
) -> dict[str, dict[str, float]]:
    """mAP@k by what is searched, of points (N, Z) and (M, Z) and their labels."""
    steps = torch.linspace(0, len(gallery) - 1, min(len(queries), len(gallery))).round().long()
    searched: dict[str, dict[str, Any]] = {
        TEST: {},
        AS_MANY: {"database": gallery[steps], "database_labels": gallery_labels[steps]},
        TRAINING: {"database": gallery, "database_labels": gallery_labels},
    }
    return {
        name: {f"mAP@{k}": map_at_k(queries, labels, k, **options) for k in KS}
        for name, options in searched.items()
    }


def run(data: Path, cache: Path, out: Path) -> Iterator[str]:
    """Measure the networks that have no result yet, and name what is finished."""
    for cell, (_, seeds) in NETWORKS.items():
        for seed in seeds:
            path = out / "results" / NAME / f"{cell.replace('/', '_')}_seed{seed}.json"
            if kept(path, partial(measure, cell, seed, data, cache)):
                yield path.stem


def measure(cell: str, seed: int, data: Path, cache: Path) -> dict[str, Any]:
    """Return the precisions of one network."""
    fitted = runs.fitted(cell, seed, cells_dir=CELLS, work=cache, data_dir=data)
    parts = []
    for name in ("test", "train"):
        images = fitted.sets[name]
        parts += [fitted.embedder.embed(images).point.cpu(), images.known_labels(by_class=False)]
    return {"cell": cell, "seed": seed, **origin(), "precisions": precisions(*parts)}


def table(out: Path) -> list[Path]:
    """Write the table from the results."""
    results = kept_results(out / "results" / NAME)
    published = read_published(HERE / "published_numbers.yaml")
    rows: list[dict[str, Any]] = []
    for cell, (printed, _) in NETWORKS.items():
        of_cell = [result["precisions"] for result in results if result["cell"] == cell]
        if not of_cell:
            continue
        rows += [_row(cell, gallery, of_cell) for gallery in GALLERIES]
        numbers = published[printed].rows["Deterministic"]
        rows.append(
            {
                "network": cell,
                "searched": "published",
                **{f"mAP@{k}": f"{numbers[f'mAP@{k}'].mean:.2f}" for k in KS},
                "difference in mAP@1": "-",
                "seeds": "-",
            }
        )
    return save(out, NAME, TITLE, rows, NOTE)


def _row(cell: str, gallery: str, of_cell: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    row: dict[str, Any] = {"network": cell, "searched": gallery}
    for k in KS:
        row[f"mAP@{k}"] = spread(by_gallery[gallery][f"mAP@{k}"] for by_gallery in of_cell).text()
    gained = spread(by_gallery[gallery]["mAP@1"] - by_gallery[TEST]["mAP@1"] for by_gallery in of_cell)
    interval = gained.interval()
    reach = "" if interval is None else f" ({interval[0]:+.3f} to {interval[1]:+.3f})"
    row["difference in mAP@1"] = "-" if gallery == TEST else f"{gained.mean:+.3f}{reach}"
    row["seeds"] = len(of_cell)
    return row


if __name__ == "__main__":
    run_or_table(__doc__, run, table)
