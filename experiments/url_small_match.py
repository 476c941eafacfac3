"""Which further numbers help the match risk: chosen on validation classes, and measured once on unseen ones.

    python -m experiments.url_small_match --benchmark url-small --data data --out figures

reads the folder that `python -m experiments.harness suite --out url-small` keeps, with the entry `risk-head`. The match
risk of the suite is a logistic of three numbers: the risk head's uncertainty, the distance to the nearest item, and the
gap to the tenth. Further numbers, none of which needs a label in the gallery, are added one by one: always the one that
is best on validation classes of the frozen track (five folds by class, mean over seeds), as long as it gains 0.002.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.common import save, show
from experiments.harness.suites import Benchmark, load
from experiments.harness.suites.fitting import Part
from experiments.harness.suites.judging import Searched, intervals, normal_rank
from experiments.harness.suites.running import V1
from experiments.harness.suites.sets import UNSEEN, VALIDATION
from laplacian_metric.core.neighbours import log_distance
from laplacian_metric.core.vector_search import Floats
from laplacian_metric.metrics import statistics
from laplacian_metric.trust.calibration import Logistic

ENTRY, SELECTING = "risk-head", "frozen"
LOCAL, FOLDS, REPEATS, LEAST_GAIN, RESAMPLES = 10, 5, 3, 0.002, 200
UNCERTAINTY, DISTANCE, GAP = "uncertainty", "log distance", "gap to the tenth"
THREE = (UNCERTAINTY, DISTANCE, GAP)
SIGNS = {  # of the weight by which each says that the nearest item is right
    UNCERTAINTY: -1,
    DISTANCE: -1,
    GAP: 1,
    "gap to the second": 1,
    "gap to the fiftieth": 1,
    "uncertainty of the nearest": -1,
    "mean uncertainty of the 10 nearest": -1,
    "mean uncertainty of the 50 nearest": -1,
    "local outlier factor": -1,
    "among the 10 nearest of its nearest": 1,
    "shared by its 10 nearest and the nearest's": 1,
    "spread of the 10 nearest": -1,
    "items within 1.1 times the distance": -1,
}
TITLE = "What further numbers add to the match risk"
NOTE = (
    "R-AUROC of logistics of numbers of the image and the unlabelled gallery. 'validation': validation classes, five "
    "folds by class, mean over the frozen track's seeds; by it numbers were added one by one, as long as the best "
    "gained 0.002. 'unseen': unseen classes of sketches, calibrated on all validation classes; only the distance, the "
    "suite's three numbers and the numbers chosen were measured there, once. 'above the distance': paired, with the "
    "mean over seeds of 95 % intervals over draws of classes. The same numbers are taken on both tracks."
)


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers (N,) of a set's images by name, with the images' neighbourhoods."""

    columns: Mapping[str, Floats]
    searched: Searched

    @staticmethod
    def of(searched: Searched, uncertainty: Floats, reference: Floats) -> Numbers:
        """Return the numbers of searched images with uncertainties (N,); ``reference`` are validation's, ascending."""
        place = searched.around.z
        ids, distances = np.asarray(place.neighbours.ids), place.neighbours.distances
        log, nearest = log_distance(distances), ids[:, 0]
        rank = normal_rank(reference, uncertainty)
        ten = ids[:, :LOCAL]
        of_nearest = np.concatenate([ten[nearest], nearest[:, None]], axis=1)
        unit = searched.gallery.embeddings.unit(slice(None))
        middle = unit[ten].mean(axis=1)
        values = (
            rank,
            log[:, 0],
            log[:, LOCAL - 1] - log[:, 0],
            log[:, 1] - log[:, 0],
            log[:, -1] - log[:, 0],
            rank[nearest],
            rank[ten].mean(axis=1),
            rank[ids].mean(axis=1),
            place.outlier_factor,
            (ten[nearest] == np.arange(len(ids))[:, None]).any(axis=1).astype(float),
            (ten[:, :, None] == of_nearest[:, None, :]).any(axis=2).sum(axis=1).astype(float),
            np.log(np.maximum(1e-7, 1 - np.square(middle).sum(axis=1))),
            np.log((distances <= 1.1 * distances[:, :1]).sum(axis=1)),
        )
        return Numbers(dict(zip(SIGNS, values, strict=True)), searched)

    def inputs(self, names: Sequence[str]) -> Floats:
        """Return some of the numbers, (N, D)."""
        return np.stack([self.columns[name] for name in names], axis=1)


def fitted(numbers: Numbers, names: Sequence[str], rows: NDArray[np.bool_] | None = None) -> Logistic:
    """Return the logistic of some numbers that says that the nearest is right, fitted on some rows."""
    rows = np.ones(len(numbers.searched.right), dtype=bool) if rows is None else rows
    signs = np.array([SIGNS[name] for name in names])
    return Logistic.fit(numbers.inputs(names)[rows], numbers.searched.right[rows], signs)


def r_auroc(searched: Searched, score: Floats) -> float:
    """Return how well a score (N,) detects that the nearest is wrong."""
    wrong = torch.from_numpy(~searched.right).double()
    return float(statistics.auroc(torch.from_numpy(score), wrong, torch.ones_like(wrong)))


def by_folds(numbers: Numbers, names: Sequence[str]) -> float:
    """Return the R-AUROC of a logistic on classes that it was not fitted on: folds by class, mean over repeats."""
    classes, values = np.unique(numbers.searched.classes), []
    for repeat in range(REPEATS):
        order = np.random.default_rng(repeat).permutation(classes)
        score = np.empty(len(numbers.searched.classes))
        for fold in range(FOLDS):
            rest = np.isin(numbers.searched.classes, order[fold::FOLDS])
            score[rest] = -fitted(numbers, names, ~rest).logit(numbers.inputs(names)[rest])
        values.append(r_auroc(numbers.searched, score))
    return mean(values)


def selected(validation: Sequence[Numbers]) -> tuple[list[str], dict[tuple[str, ...], float]]:
    """Return the numbers that are taken, and the validation R-AUROC of everything that was tried, by names."""
    tried: dict[tuple[str, ...], float] = {}

    def value(names: Sequence[str]) -> float:
        if tuple(names) not in tried:
            tried[tuple(names)] = mean(by_folds(one, names) for one in validation)
        return tried[tuple(names)]

    value([DISTANCE])
    taken = list(THREE)
    while rest := [name for name in SIGNS if name not in taken]:
        best = max(rest, key=lambda name: value([*taken, name]))
        if value([*taken, best]) < value(taken) + LEAST_GAIN:
            break
        taken.append(best)
    return taken, tried


def measured(validation: Numbers, unseen: Numbers, names: Sequence[str]) -> dict[str, float]:
    """Return the R-AUROC on unseen classes of a logistic of validation images, and what it adds to the distance."""
    score = torch.from_numpy(-fitted(validation, names).logit(unseen.inputs(names)))
    scores: dict[str, Tensor] = {"match": score, "distance": torch.from_numpy(unseen.columns[DISTANCE])}
    ends = intervals(unseen.searched, scores, {"gap": ("match", "distance")}, RESAMPLES)["gap"]
    value, distance = (r_auroc(unseen.searched, one.numpy()) for one in scores.values())
    return {"unseen": value, "gap": value - distance, "low": ends.low, "high": ends.high}


def pairs_of(run: Benchmark, track: str) -> list[tuple[Numbers, Numbers]]:
    """Return the numbers of validation and unseen images of every seed that was run."""
    sets, setting = run.sets[track], run.choose(track, ENTRY, V1).setting
    done = run.results()["tracks"][track]["entries"][ENTRY]["seeds"][V1]
    pairs = []
    for seed in map(int, done):
        embedder = run.fitting.fit(Part(track, ENTRY, setting, seed)).embedder
        reference: Floats | None = None
        numbers = []
        for name in (VALIDATION, UNSEEN + sets.track.main):
            embedding = embedder.embed(sets[name], progress=False)
            uncertainty = embedding.uncertainty.double().numpy()
            reference = np.sort(uncertainty) if reference is None else reference
            searched = Searched.of(embedding.point, sets[name].known_labels())
            numbers.append(Numbers.of(searched, uncertainty, reference))
        pairs.append((numbers[0], numbers[1]))
    return pairs


def table(
    by_track: Mapping[str, Sequence[tuple[Numbers, Numbers]]],
    taken: Sequence[str],
    tried: Mapping[tuple[str, ...], float],
) -> list[dict[str, Any]]:
    """Return a row for everything that was tried, and for what was measured on unseen classes."""
    rows = []
    kept = ((DISTANCE,), THREE, tuple(taken))
    for names, value in tried.items():
        added = ", ".join(name for name in names if name not in THREE)
        label = DISTANCE if names == (DISTANCE,) else "three numbers" + (f" and {added}" if added else "")
        rows.append(
            {"track": SELECTING, "numbers": label, "validation": round(value, 4), **_unseen([], names)}
        )
        if names in kept:
            rows[-1] |= _unseen(by_track[SELECTING], names)
    for track, pairs in by_track.items():
        for names in kept if track != SELECTING else ():
            label = DISTANCE if len(names) == 1 else "three numbers" if names == THREE else "those chosen"
            value = round(mean(by_folds(validation, names) for validation, _ in pairs), 4)
            rows.append({"track": track, "numbers": label, "validation": value, **_unseen(pairs, names)})
    return rows


def _unseen(pairs: Sequence[tuple[Numbers, Numbers]], names: Sequence[str]) -> dict[str, Any]:
    if not pairs:
        return {"unseen": "not measured", "above the distance": "", "seeds": ""}
    every = [measured(*pair, names) for pair in pairs]
    value, gap, low, high = (mean(one[key] for one in every) for key in ("unseen", "gap", "low", "high"))
    above = "" if len(names) == 1 else f"{gap:+.4f} ({low:+.3f} to {high:+.3f})"
    return {"unseen": f"{value:.4f}", "above the distance": above, "seeds": len(pairs)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose numbers, measure them, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benchmark", type=Path, required=True, help="folder of the suite")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder of the table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run = Benchmark(load("url-small"), options.benchmark, options.data)
    done = run.results()["tracks"]
    by_track = {track: pairs_of(run, track) for track in done if done[track]["entries"][ENTRY]["seeds"]}
    taken, tried = selected([validation for validation, _ in by_track[SELECTING]])
    rows = table(by_track, taken, tried)
    show(TITLE, rows)
    save(options.out, "url_small_match", TITLE, rows, NOTE)


if __name__ == "__main__":
    main()
