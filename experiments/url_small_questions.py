"""What the URL papers ask of the parts of `url-small`: differences, correlations, safe retrieval, the ceiling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from experiments.harness.suites import Benchmark, Row
from experiments.harness.suites.fitting import Part
from experiments.harness.suites.judging import IMAGE, MATCH_RISK, TRUST, Searched
from experiments.harness.suites.leaderboard import first_of, shown
from experiments.harness.suites.measuring import BESIDE
from experiments.harness.suites.running import PARTS, SCORES, V1, WORK
from experiments.harness.suites.sets import UNSEEN
from experiments.harness.work import read_json, write_json
from laplacian_metric.core import tensor_file
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.method import FitData
from laplacian_metric.core.splits import Split
from laplacian_metric.encoder import Encoder
from laplacian_metric.metrics import statistics
from laplacian_metric.metrics.evaluation import OWN
from laplacian_metric.metrics.resampling import bootstrap_all

RESAMPLES = 300
RECALL = "R@1"
Statistic = Callable[[Tensor], Tensor]
Sides = tuple[str, str, str, str]  # an entry and its score, or R@1, and what it is compared with


def compared(run: Benchmark, track: str, entries: Mapping[str, Any], pair: Sides) -> dict[str, Any] | None:
    """Return the difference of two scores' R-AUROC, or of R@1, on the main set: a mean over seeds, and an interval.

    Each score is judged by the errors of its own space; every draw has the same classes for both. None where a part
    was not run.
    """
    differences, draws = [], []
    for seed in run.suite.seeds:
        sides = [
            side
            for entry in (pair[0], pair[2])
            if (side := scores_of_part(run, track, entries, entry, seed)) is not None
        ]
        if len(sides) < 2:
            continue
        first, second = (
            partial(_statistic, side, score) for side, score in zip(sides, (pair[1], pair[3]), strict=True)
        )
        ones = torch.ones(len(sides[0]["right"])).double()
        differences.append(float(first(ones) - second(ones)))
        draws.append(
            bootstrap_all(
                {"gap": partial(_gap, first, second)},
                len(ones),
                resamples=RESAMPLES,
                groups=sides[0]["classes"],
            )["gap"]
        )
    if not differences:
        return None
    low, high = (sum(getattr(one, end) for one in draws) / len(draws) for end in ("low", "high"))
    return {
        "difference": sum(differences) / len(differences),
        "low": low,
        "high": high,
        "seeds": len(differences),
        "standard error": (high - low) / 3.92,
    }


def _gap(first: Statistic, second: Statistic, weights: Tensor) -> Tensor:
    return first(weights) - second(weights)


def _statistic(side: Mapping[str, Tensor], score: str, weights: Tensor) -> Tensor:
    if score == RECALL:
        return statistics.mean(side["right"].double(), weights)
    return statistics.auroc(side[score].double(), (~side["right"]).double(), weights)


def scores_of_part(
    run: Benchmark, track: str, entries: Mapping[str, Any], entry: str, seed: int
) -> dict[str, Tensor] | None:
    chosen = entries.get(entry, {}).get("chosen", {})
    if V1 not in chosen:
        return None
    place = Part(track, entry, chosen[V1]["setting"], seed).place(run.out / WORK) / SCORES
    return tensor_file.load(place)[0] if place.is_file() else None


def columns(listed: Sequence[Row]) -> dict[str, list[tuple[Row, float]]]:
    """Return for every column that R-AUROC is compared with the scores of the image alone that have both numbers."""
    own = [row for row in listed if row.group in (IMAGE, BESIDE) and row.seeds]
    readers: dict[str, Callable[[Row], float]] = {
        "R-AUROC of seen classes (upstream)": lambda row: row.upstream,
        "crops": lambda row: row.crop,
        "people": lambda row: row.people,
        "corrupted": lambda row: row.corruption,
        "unseen/seen": lambda row: row.unseen,
        RECALL: lambda row: first_of(row.recall),
    }
    names = list(own[0].r_auroc)[1:] if own else []
    readers |= {f"R-AUROC {name}": partial(_r_auroc, name) for name in names}
    return {
        name: [(row, read(row)) for row in own if not math.isnan(read(row))] for name, read in readers.items()
    }


def _r_auroc(name: str, row: Row) -> float:
    return row.r_auroc[name]


def across_models(listed: Sequence[Row]) -> list[list[str]]:
    """Return over the methods the rank correlation of R-AUROC on the main set with other columns."""
    lines = []
    for name, pairs in columns(listed).items():
        if len(pairs) > 2 and len({value for _, value in pairs}) > 1:
            one = spearmanr(*zip(*((first_of(row.r_auroc), value) for row, value in pairs), strict=True))
            lines.append([name, *(shown(float(n), 2) for n in (one.statistic, one.pvalue)), str(len(pairs))])
    return lines


def strengths(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the AUROC of corrupted images against clean ones by strength, the mean over kinds and seeds."""
    numbers = [part["image"][entry["score"]]["corruption"] for part in entry["seeds"].get(V1, {}).values()]
    every = sorted({name.rsplit("-", 1)[1] for one in numbers for name in one}, key=float)
    return {
        strength: mean_of(
            value for one in numbers for name, value in one.items() if name.endswith(f"-{strength}")
        )
        for strength in every
    }


def by_strength(content: Mapping[str, Any]) -> list[list[str]]:
    """Return the AUROC of corrupted images of growing strength, the mean over kinds, for every method's score."""
    lines = []
    for entry in content["entries"].values():
        if means := strengths(entry):
            parts = entry["seeds"][V1].values()
            unseen = mean_of(part["image"][entry["score"]]["unseen_auroc"] for part in parts)
            lines.append([entry["title"], *map(shown, means.values()), shown(unseen)])
    return lines


SAFE = ("all", "queries", "queries, at random", "gallery", "both", "both, at random")


def safe_means(entry: Mapping[str, Any], score: str) -> dict[str, float]:
    """Return R@1 of safe retrieval by a score, the mean over seeds; empty where the entry was not run."""
    parts = list(entry["seeds"].get(V1, {}).values())
    return {key: mean_of(part["safe"][score][key] for part in parts) for key in SAFE} if parts else {}


def safe(content: Mapping[str, Any]) -> list[list[str]]:
    """Return R@1 where a tenth of the queries is rejected, a tenth of the gallery dropped, or both."""
    return [
        [entry["title"], entry["score"] if score == OWN else score, *map(shown, means.values())]
        for entry in content["entries"].values()
        for score in (OWN, MATCH_RISK, TRUST)
        if (means := safe_means(entry, score))
    ]


def many_shot(run: Benchmark, track: str, seeds: Sequence[int]) -> list[float]:
    """Return the R-AUROC of a risk head that was trained on half of the unseen images, on the other half.

    No method may do this: it says how much the features hold.
    """
    from laplacian_metric.methods.risk.loss_prediction import LossPrediction, pretrain

    kept_in = run.out / PARTS / track / "many-shot.json"
    if (stored := read_json(kept_in)) is not None and stored["seeds"] == list(seeds):
        return list(stored["r_auroc"])
    sets = run.sets[track]
    images = sets[UNSEEN + sets.track.main]
    head = run.fitting.fit(Part(track, "untrained", run.choose(track, "untrained", V1).setting, 0)).encoder
    points = nn.functional.normalize(head.raw(images.inputs).detach())
    right = torch.from_numpy(Searched.of(points, images.labels).right)
    values = []
    for seed in seeds:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
        half, rest = order[: len(order) // 2], order[len(order) // 2 :]
        train, kept = half[: 9 * len(half) // 10], half[9 * len(half) // 10 :]
        data = FitData(_rows(images, train), _rows(images, kept))
        risk, _ = pretrain(Encoder(nn.Identity(), head.head), data, LossPrediction(seed=seed), progress=False)
        with torch.inference_mode():
            uncertainty = risk(images.inputs[rest]).flatten()
        wrong = (~right[rest]).double()
        values.append(float(statistics.auroc(uncertainty.double(), wrong, torch.ones(len(rest)).double())))
    write_json(kept_in, {"seeds": list(seeds), "r_auroc": values})
    return values


def _rows(images: Dataset, rows_: Tensor) -> Dataset:
    return Dataset(images.inputs[rows_], images.labels[rows_], split=Split.TRAIN)


def mean_of(values: Iterable[float | None]) -> float:
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan
