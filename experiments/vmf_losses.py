"""Which loss of the vMF head is best on validation images: what decides the default.

    python -m experiments.vmf_losses run --data DATA --cache WORK --out figures
    python -m experiments.vmf_losses table --out figures

Heads on features of EfficientNet-Lite0. Quick, Draw!: trained on 138 classes of sketches, measured on 34 other classes.
FashionMNIST: trained on 3,000 training images, measured on 1,500 others. No test image is looked at. Each loss has
two values of kappa_pos (of the kernel's factor, for "elk"), and contrastive HIB, which learns its own scale, none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import save, show, write_text
from experiments.arguments import run_or_table
from experiments.frozen import embedded, features, trained
from experiments.trust.features import image_set_features
from laplacian_metric import metrics
from laplacian_metric.data import Dataset
from laplacian_metric.methods import make
from laplacian_metric.methods.spherical.vmf_contrast import log_kernel
from laplacian_metric.metrics.ranking import error_auroc, rank_by
from laplacian_metric.metrics.resampling import compare_paired
from laplacian_metric.metrics.sparsification import sparsify
from laplacian_metric.training import TrainingOptions
from laplacian_metric.training.options import Optimizer, Sampling, Schedule

DIM = 16
SEEDS = range(3)
DATA_SETS = ("quickdraw", "fashion-mnist")
SCALES: dict[str, tuple[float | None, ...]] = {
    "positivity": (16.0, 32.0),
    "mc-infonce": (16.0, 32.0),
    "elk": (1.0, 2.0),
    "hib": (None,),
}
OPTIONS = TrainingOptions(
    epochs=6,
    batch_size=64,
    optimizer=Optimizer.ADAM,
    learning_rate=1e-3,
    schedule=Schedule.COSINE,
    sampling=Sampling.BALANCED,
    images_per_class=8,
)
TITLE = "Losses of the vMF head on validation images"
NOTE = (
    "Means over 3 seeds. 'kappa_pos': the better of two by AUSC on the same images. mAP@R; R-AUROC of 1/kappa for 'the "
    "nearest item has another label', beside that of the distance to the nearest item; AUSC, the mean recall@1 while "
    "the least certain queries are left out, is what decides, because it needs both. 'to the best': the difference of "
    "AUSC to the best row of the data set, with Student's interval over seeds."
)


@dataclass(frozen=True)
class Cell:
    """One training: the data set, the options of `VMFHead` and the seed."""

    data: str
    loss: str
    negatives: str
    kappa_pos: float | None
    seed: int

    @property
    def name(self) -> str:
        """What its entry in the result file is called."""
        return "_".join(str(value) for value in asdict(self).values())


CELLS = [
    Cell(name, loss, negatives, scale, seed)
    for seed in SEEDS
    for name in DATA_SETS
    for loss, scales in SCALES.items()
    for negatives in ("others", "all")
    for scale in scales
]


def data_sets(root: Path, cache: Path, name: str) -> tuple[Dataset, Dataset]:
    """Return training and validation features."""

    def read(file: str) -> tuple[NDArray[Any], NDArray[Any]]:
        content = image_set_features(root, cache, file)
        return content["h"], content["labels"]

    if name == "quickdraw":
        parts = [read("quickdraw-train"), read("quickdraw-validation")]
    else:
        h, labels = read("fashion-train")
        parts = [(h[:3000], labels[:3000]), (h[3000:], labels[3000:])]
    training, validation = (features(h, labels, name) for h, labels in parts)
    return training.relabelled(), validation


def measure(cell: Cell, training: Dataset, validation: Dataset) -> dict[str, float]:
    """Train a cell and return what it is like on validation images."""
    options = {"loss": cell.loss, "negatives": cell.negatives, "kappa_pos": cell.kappa_pos}
    method = make("vmf", **options)
    begun = time.process_time()
    embedder = trained(method, training, validation, dim=DIM, options=OPTIONS, seed=cell.seed)
    seconds = time.process_time() - begun
    e = embedded(embedder, validation)
    if cell.loss == "elk":
        ranking = rank_by(
            lambda rows: log_kernel(e[rows].mean, e[rows].kappa, e.mean, e.kappa), validation.labels
        )
    else:
        ranking = metrics.rank(e.mean, validation.labels, at_r=True)
    assert ranking.precision_at_r is not None
    return {
        "mAP@R": float(ranking.precision_at_r.mean()),
        "R-AUROC": error_auroc(ranking, e.uncertainty),
        "R-AUROC of the distance": error_auroc(ranking, ranking.distance),
        "AUSC": sparsify(ranking, e.uncertainty).area,
        "median kappa": float(e.kappa.median()),
        "cpu seconds": seconds,
    }


def run(root: Path, cache: Path, out: Path) -> Iterator[str]:
    """Train the cells that the result file does not have yet."""
    path = out / "results" / "vmf_losses.json"
    results: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.is_file() else {}
    sets = {name: data_sets(root, cache, name) for name in DATA_SETS}
    for cell in CELLS:
        if cell.name not in results:
            results[cell.name] = measure(cell, *sets[cell.data])
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(results, indent=1) + "\n")
            yield cell.name


def table(out: Path) -> list[Path]:
    """Write the table of what has finished."""
    results = json.loads((out / "results" / "vmf_losses.json").read_text())
    rows: list[dict[str, Any]] = []
    for name in DATA_SETS:
        choices = []
        for loss, scales in SCALES.items():
            for negatives in ("others", "all"):
                by_scale = {
                    scale: [
                        results[cell.name]
                        for cell in CELLS
                        if (cell.data, cell.loss, cell.negatives, cell.kappa_pos)
                        == (name, loss, negatives, scale)
                        and cell.name in results
                    ]
                    for scale in scales
                }
                complete = {scale: each for scale, each in by_scale.items() if len(each) == len(SEEDS)}
                if complete:
                    best = max(complete, key=lambda s: float(np.mean([r["AUSC"] for r in complete[s]])))
                    choices.append((loss, negatives, best, complete[best]))
        top = max(choices, key=lambda choice: float(np.mean([r["AUSC"] for r in choice[3]])))
        for loss, negatives, scale, seeds in choices:
            values = {key: float(np.mean([r[key] for r in seeds])) for key in seeds[0]}
            beside = compare_paired([r["AUSC"] for r in seeds], [r["AUSC"] for r in top[3]])
            rows.append(
                {"data": name, "loss": loss, "negatives": negatives, "kappa_pos": scale}
                | {key: round(value, 4 if value < 1 else 1) for key, value in values.items()}
                | {
                    "to the best": "-"
                    if seeds is top[3]
                    else f"{beside.difference:.4f} ({beside.low:.4f} to {beside.high:.4f})"
                }
            )
    show(TITLE, rows)
    return save(out, "vmf_losses", TITLE, rows, NOTE)


def main() -> None:
    """Run what is missing, or make the table of what has finished."""
    run_or_table(__doc__, run, table)


if __name__ == "__main__":
    main()
