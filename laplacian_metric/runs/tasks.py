"""A list of runs: what each is, what it takes of disk and memory, and what became of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laplacian_metric.metrics.evaluation import OWN
from laplacian_metric.runs.cell_fitting import Place
from laplacian_metric.runs.config import Cell
from laplacian_metric.runs.feature_sets import bytes_of
from laplacian_metric.runs.image_sets import CORRUPTED, CROPPED, OUT, TEST, TRAIN, VALIDATION, size
from laplacian_metric.runs.results import Result
from laplacian_metric.runs.sections import NetworkSection


@dataclass(frozen=True)
class Task:
    """One cell with one seed."""

    cell: Cell
    seed: int

    @property
    def name(self) -> str:
        return f"{self.cell.name}, seed {self.seed}"

    @property
    def features(self) -> tuple[str, int]:
        """The name and the seed of the features that it may go by."""
        return self.cell.features_at(self.seed)


@dataclass
class Summary:
    """What became of the runs, by name; those that failed in an earlier call are not tried again unless asked for."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed_before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    without_data: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all of them have a result now."""
        return not self.failed and not self.failed_before and not self.without_data


def headline(result: Result) -> str:
    """Return the main numbers of a result in one line."""
    retrieval, scores = result.retrieval[TEST], result.scores
    parts = [f"{name} {retrieval[name]:.4f}" for name in retrieval if name in ("recall@1", "map@5")]
    for name in [OWN] if OWN in scores else scores:
        detected = [f"{label} {numbers['auroc']:.4f}" for label, numbers in scores[name].ood.items()]
        auroc = f"AUROC {' '.join(detected)}, " if detected else ""
        parts.append(f"{name}: {auroc}R-AUROC {scores[name].values['r_auroc']:.4f}")
    if result.calibration is not None:
        parts.append(f"ECE {result.calibration.ece:.4f}")
    seconds = [f"{result.seconds[key]:.0f}" for key in ("training", "fit", "evaluation")]
    return ", ".join([*parts, f"{' + '.join(seconds)} s"])


GIB = 2**30


def space(place: Place, runs: Sequence[tuple[Cell, int]], keep: bool) -> list[str]:
    """What the features of the runs take, in sentences; nothing where there are none, or they cannot be told."""
    sizes: dict[tuple[str, int], int] = {}
    known: dict[str, int] = {}
    for cell, seed in runs:
        if not cell.needs_features:
            continue
        if cell.name not in known:
            try:
                known[cell.name] = _size(place, cell)
            except Exception:
                continue  # whatever is wrong with it is said when it is run, and stops no other cell
        key = cell.features_at(seed)
        sizes[key] = max(sizes.get(key, 0), known[cell.name])
    if not sizes:
        return []
    total = sum(sizes.values()) if keep else max(sizes.values())
    bases = ", ".join(dict.fromkeys(name for name, _ in sizes))
    kept = "kept" if keep else "removed when no run of the list needs them"
    lines = [
        f"features of {bases} take {total / GIB:.1f} GiB on disk at a time, and are {kept}; they are mapped, so that "
        "memory is used as there is some"
    ]
    free = shutil.disk_usage(_existing(place.work.root)).free
    if free < total:
        lines.append(
            f"only {free / GIB:.1f} GiB are free where they go: make room, or run fewer cells at a time"
        )
    return lines


def _size(place: Place, cell: Cell) -> int:
    images = place.images(cell)
    names = [TRAIN, VALIDATION, TEST, *(OUT + out.label for out in cell.data.out)]
    names += [CORRUPTED] * cell.evaluation.corrupted + [CROPPED] * cell.evaluation.crop_test
    return bytes_of(sum(size(images, name) for name in names), _width(cell.network))


def _width(network: NetworkSection) -> int:
    """H, of the network without its weights."""
    plain = network.model_copy(update={"pretrained": False, "weights": None})
    return plain.make(0).num_features


def _existing(path: Path) -> Path:
    return next(place for place in (path.resolve(), *path.resolve().parents) if place.exists())
