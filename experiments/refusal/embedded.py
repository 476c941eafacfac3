"""Embedded test images and OOD images of a cell and a seed, kept below WORK: a posterior takes minutes to fit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import experiments.published  # noqa: F401 (registers what cells as published need)
import hessians
import laplacian_metric
from experiments import harness as runs
from experiments.harness.image_sets import OUT, TEST, TRAIN
from experiments.harness.measurements import method_scores, trivial_scores
from laplacian_metric.core.files import atomic_write
from laplacian_metric.metrics.evaluation import OWN

FOLDER = "embedded"
Array = NDArray[Any]


@dataclass(frozen=True)
class Embedded:
    """A cell's test images and OOD images.

    Attributes:
        point, mean: (N, D), unit rows, of the test images.
        kappa: (N,).
        labels: (N,).
        scores: by name, how unsure of each test image, (N,); "own" is the method's uncertainty.
        ood: by the label of their set, the same scores.
        has_uncertainty: whether the method says anything by itself.
    """

    point: Array
    mean: Array
    kappa: Array
    labels: Array
    scores: dict[str, Array]
    ood: dict[str, dict[str, Array]]
    has_uncertainty: bool


def embedded(name: str, seed: int, *, cells_dir: Path, work: Path, data: Path | None) -> Embedded:
    """From WORK, if it was embedded there with the same configurations by the same sources; else embedded now."""
    cells = runs.Cells(cells_dir)
    configs = []
    cell: runs.Cell | None = cells[name]
    while cell is not None:  # and the cells whose networks it starts from
        configs.append(cell.model_dump(mode="json"))
        cell = None if cell.base is None else cells[cell.base]
    identity = json.dumps({"seed": seed, "configs": configs, "sources": sources()}, sort_keys=True)
    path = work / FOLDER / name / f"seed{seed}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["told"]) == identity:
                return _of({key: stored[key] for key in stored.files})
    arrays = _embed(name, seed, cells_dir, work, data) | {"told": np.array(identity)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes the names for options
    return _of(arrays)


def sources() -> str:
    """A digest of the packages: what another version embedded is not this one's."""
    checksum = hashlib.sha256()
    for package in (hessians, laplacian_metric):
        folder = Path(package.__file__ or "").parent
        for path in sorted(folder.rglob("*.py")):
            checksum.update(
                f"{path.relative_to(folder).as_posix()} ".encode()
                + hashlib.sha256(path.read_bytes()).digest()
            )
    return checksum.hexdigest()


def _embed(name: str, seed: int, cells_dir: Path, work: Path, data: Path | None) -> dict[str, Array]:
    cell = runs.Cells(cells_dir)[name]
    fitted_cell = runs.fitted(name, seed, cells_dir=cells_dir, work=work, data_dir=data)
    sets = {name: fitted_cell.sets[name] for name in (TEST, *(OUT + out.label for out in cell.data.out))}
    embeddings = {name: fitted_cell.embedder.embed(inputs).to("cpu") for name, inputs in sets.items()}
    e = embeddings[TEST]
    arrays: dict[str, Array] = {
        "point": e.point.numpy(),
        "mean": e.mean.numpy(),
        "kappa": e.kappa.numpy(),
        "labels": sets[TEST].labels.numpy(),
        "has_uncertainty": np.array(cell.method.kind.has_uncertainty),
    }
    scores: dict[str, dict[str, Any]] = {}
    if cell.method.kind.has_uncertainty:
        scores = method_scores(fitted_cell.embedder, sets, embeddings)
    elif fitted_cell.encoder is not None:
        scores = dict(trivial_scores(fitted_cell.encoder, sets, fitted_cell.sets[TRAIN]))
    for score, by_set in scores.items():
        for which, values in by_set.items():
            arrays[f"score|{score}|{which}"] = values.double().numpy()
    return arrays


def _of(arrays: dict[str, Array]) -> Embedded:
    scores: dict[str, Array] = {}
    ood: dict[str, dict[str, Array]] = {}
    for key, values in arrays.items():
        if key.startswith("score|"):
            _, score, which = key.split("|")
            if which == TEST:
                scores[score] = values
            else:
                ood.setdefault(which.removeprefix(OUT), {})[score] = values
    return Embedded(
        arrays["point"],
        arrays["mean"],
        arrays["kappa"],
        arrays["labels"],
        scores,
        ood,
        bool(arrays["has_uncertainty"]),
    )


__all__ = ["FOLDER", "OWN", "Embedded", "embedded"]
