"""What the image leaves open and what the network does not know, on images that are corrupted, strange, or both.

    python -m experiments.combined --data DATA --work WORK --results figures/results --out figures

`experiments/combined.yaml` names pairs of cells, one whose uncertainty is learned and one whose is deduced. Their
networks are read from WORK for those seeds that have a result file, and trained anew where they are not there, or left
out with --trained. `combine` splits the variance of the direction of every image into both parts. Written are
OUT/combined.md and .json, the AUROC of either part against clean test images by what was done to images, and
OUT/plots/combined.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import save, show
from experiments import harness as runs
from experiments.arguments import add_places, done
from experiments.corruptions import HIDING, corrupt
from experiments.harness.image_sets import OUT, TEST, VALIDATION, spread
from experiments.harness.tables.seeds import spread as spread_of
from experiments.pictures import GRID, band, panels, shared_legend
from laplacian_metric import metrics
from laplacian_metric.core.checked import read_yaml
from laplacian_metric.core.dataset import Dataset
from laplacian_metric.core.embedding import StochasticEmbedding, at_norm, combine
from laplacian_metric.core.files import atomic_write
from laplacian_metric.core.progress import track
from laplacian_metric.report.plots import as_png

HERE = Path(__file__).resolve().parent
STRENGTHS = (0.25, 0.5, 0.75, 1.0)
ALEATORIC, EPISTEMIC = "aleatoric", "epistemic"
PARTS = (ALEATORIC, EPISTEMIC)
CORRUPTED, STRANGE, BOTH = "corrupted", "strange", "strange and corrupted"
CLEAN = ("clean", 0.0)
COLOURS = {ALEATORIC: "#4477aa", EPISTEMIC: "#ee6677"}
LINES = {CORRUPTED: "-o", STRANGE: "--s"}
TITLE = "Learned and deduced uncertainty, by what was done to images"

# Of one pair and seed, the parts (N,) by the name of a set of images and the strength of its corruption.
Parts = dict[tuple[str, float], dict[str, Tensor]]


@dataclass(frozen=True)
class Pair:
    """Two cells that are combined, what they are called, and what was measured of each seed."""

    label: str
    ood: str
    seeds: list[Parts]


@dataclass(frozen=True)
class Embedded:
    """The sets of images by one cell's network, and the median norm of its raw embeddings of validation images."""

    sets: dict[tuple[str, float], StochasticEmbedding]
    norm: float | None


def image_sets(fitted: runs.Fitted, out: str, limit: int | None) -> dict[tuple[str, float], Tensor]:
    """Clean and corrupted test images and OOD images, as a network takes them, by name and strength."""
    by_corruption: dict[tuple[str, float], Tensor] = {}
    for name, clean_name, corrupted_name in ((TEST, CLEAN[0], CORRUPTED), (OUT + out, STRANGE, BOTH)):
        images = spread(fitted.sets.images[name], limit)
        if images.preparation is not None and images.preparation.preprocessing != "unit":
            raise ValueError(
                f"the images of {images.name} are not in [0, 1]: set data.preprocessing to 'unit'"
            )
        clean = images.floats()
        by_corruption[clean_name, 0.0] = clean
        for kind in HIDING:
            for strength in STRENGTHS:
                by_corruption[f"{corrupted_name}, {kind}", strength] = corrupt(
                    clean, kind, strength, indices=images.indices
                )
    return by_corruption


def embed(fitted: runs.Fitted, images: Tensor) -> StochasticEmbedding:
    """Images by a cell's embedder, through the backbone first where that takes features."""
    return fitted.embed(Dataset(images, batch_size=500)).to("cpu")


def embedded(fitted: runs.Fitted, out: str, limit: int | None = None) -> Embedded:
    """All sets of images by a cell's embedder."""
    sets = {key: embed(fitted, images) for key, images in image_sets(fitted, out, limit).items()}
    validation = fitted.embedder.embed(fitted.sets[VALIDATION], progress=False)
    norm = None if validation.gaussians is None else float(validation.gaussians.mean.norm(dim=1).median())
    return Embedded(sets, norm)


def parts(learned: Embedded, deduced: Embedded, *, one_norm: bool = False) -> Parts:
    """Both parts of the variance for every set of images.

    With ``one_norm`` all raw embeddings of the second have the median norm of validation images, see `at_norm`.
    """
    parts_by_name: Parts = {}
    for key, e in deduced.sets.items():
        placed = at_norm(e, deduced.norm or 1.0) if one_norm else e
        both = combine(learned.sets[key], placed)
        parts_by_name[key] = {ALEATORIC: both.aleatoric, EPISTEMIC: both.epistemic}
    return parts_by_name


def pooled(parts_by_name: Parts, name: str, part: str, strengths: Sequence[float] = STRENGTHS) -> Tensor:
    """The part of all images of the sets whose name begins so, at these strengths."""
    chosen = [
        values[part]
        for (which, strength), values in parts_by_name.items()
        if (which == name or which.startswith(f"{name}, ")) and strength in strengths
    ]
    return torch.cat(chosen)


def auroc(parts_by_name: Parts, name: str, part: str, strengths: Sequence[float] = STRENGTHS) -> float:
    """How well a part tells these images from clean ones."""
    return float(metrics.ood_auroc(parts_by_name[CLEAN][part], pooled(parts_by_name, name, part, strengths)))


def causes(parts_by_name: Parts) -> dict[str, dict[str, float]]:
    """The AUROC of both parts by cause, over all strengths."""
    of_clean = {
        **{f"{kind} alone": (f"{CORRUPTED}, {kind}", STRENGTHS) for kind in HIDING},
        CORRUPTED: (CORRUPTED, STRENGTHS),
        STRANGE: (STRANGE, (0.0,)),
        BOTH: (BOTH, STRENGTHS),
    }
    aurocs = {
        cause: {part: auroc(parts_by_name, name, part, strengths) for part in PARTS}
        for cause, (name, strengths) in of_clean.items()
    }
    aurocs["strange and corrupted, against strange"] = {
        part: float(metrics.ood_auroc(parts_by_name[STRANGE, 0.0][part], pooled(parts_by_name, BOTH, part)))
        for part in PARTS
    }
    return aurocs


def claims(aurocs: Mapping[str, Mapping[str, float]]) -> dict[str, bool]:
    """Whether each part reacts to its own cause more than to the other's, and more than the other part does."""
    corrupted, strange = aurocs[CORRUPTED], aurocs[STRANGE]
    return {
        "the learned part tells corrupted images better than OOD images": corrupted[ALEATORIC]
        > strange[ALEATORIC],
        "the deduced part tells OOD images better than corrupted images": strange[EPISTEMIC]
        > corrupted[EPISTEMIC],
        "the learned part tells corrupted images better than the deduced one": corrupted[ALEATORIC]
        > corrupted[EPISTEMIC],
        "the deduced part tells OOD images better than the learned one": strange[EPISTEMIC]
        > strange[ALEATORIC],
    }


def rows_of(pair: Pair) -> list[dict[str, Any]]:
    """The table's rows of a pair: mean and deviation over seeds."""
    aurocs = [causes(seed_parts) for seed_parts in pair.seeds]
    rows = []
    for cause in aurocs[0]:
        row: dict[str, Any] = {"pair": pair.label, "images": cause}
        for part in PARTS:
            row[f"{part} part, AUROC"] = spread_of(each[cause][part] for each in aurocs).text()
        rows.append({**row, "seeds": len(aurocs)})
    return rows


def said(pair: Pair) -> str:
    """Which claims hold for how many seeds, in a sentence."""
    confirmed = [claims(causes(seed_parts)) for seed_parts in pair.seeds]
    words = [
        f"{claim} with {sum(each[claim] for each in confirmed)} of {len(confirmed)} seeds"
        for claim in confirmed[0]
    ]
    return f"{pair.label}: {'; '.join(words)}."


def curves(pair: Pair) -> dict[str, dict[str, list[list[float]]]]:
    """The AUROC over the strength, from 0 on, a list for every seed: by part, of corrupted images and OOD images."""
    points: dict[str, dict[str, list[list[float]]]] = {part: {} for part in PARTS}
    for part in PARTS:
        points[part][CORRUPTED] = [
            [0.5, *(auroc(each, CORRUPTED, part, (strength,)) for strength in STRENGTHS)]
            for each in pair.seeds
        ]
        points[part][STRANGE] = [
            [
                auroc(each, STRANGE, part, (0.0,)),
                *(auroc(each, BOTH, part, (strength,)) for strength in STRENGTHS),
            ]
            for each in pair.seeds
        ]
    return points


def picture(pairs: Sequence[Pair]) -> bytes:
    """A panel for each pair: the AUROC of both parts over how far test images, and OOD images, are corrupted."""
    figure, every = panels(len(pairs), 4.2, 3.6)
    x = np.array([0.0, *STRENGTHS])
    for axes, pair in zip(every, pairs, strict=True):
        for part, by_images in curves(pair).items():
            for images, drawn in by_images.items():
                mean, deviation = band([np.array(values) for values in drawn])
                label = f"{part} part, {'OOD images' if images == STRANGE else 'test images'}"
                axes.plot(x, mean, LINES[images], color=COLOURS[part], label=label)
                axes.fill_between(
                    x, mean - deviation, mean + deviation, color=COLOURS[part], alpha=0.15, linewidth=0
                )
        axes.set(
            title=pair.label.replace(": ", ":\n"),
            xlabel="strength of the corruption",
            ylabel="AUROC against clean",
            ylim=(0, 1),
        )
        axes.grid(alpha=GRID)
    shared_legend(figure, every, columns=2)
    return as_png(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure learned and deduced uncertainty together.")
    add_places(parser, HERE / "combined.yaml")
    options = parser.parse_args(arguments)
    described = read_yaml(options.described)
    keep: dict[tuple[str, int], Embedded] = {}
    results = done(options)
    pairs = [
        pair
        for pair_config in described["pairs"]
        if (pair := _pair(pair_config, described, results, keep, options)).seeds
    ]
    if not pairs:
        raise SystemExit(
            f"{options.results} has no results of both cells of a pair in {options.described.name}: run cells first"
        )
    rows = [row for pair in pairs for row in rows_of(pair)]
    note = " ".join(
        [
            f"AUROC against clean test images, all strengths ({', '.join(map(str, STRENGTHS))}) together; mean ± "
            f"standard deviation over seeds. OOD: {pairs[0].ood}.",
            *(said(pair) for pair in pairs),
        ]
    )
    show(TITLE, rows)
    save(options.out, "combined", TITLE, rows, note)
    folder = options.out / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / "combined.png") as temporary:
        temporary.write_bytes(picture(pairs))


def _pair(
    pair_config: Mapping[str, Any],
    described: Mapping[str, Any],
    done: set[tuple[str, int]],
    keep: dict[tuple[str, int], Embedded],
    options: argparse.Namespace,
) -> Pair:
    """What was measured of the seeds of which both cells have a result; what was embedded is kept for other pairs."""
    seeds = []
    for seed in track(described["seeds"], pair_config["label"]):
        wanted = [(pair_config[part], seed) for part in PARTS]
        if not done.issuperset(wanted):
            continue
        for name, number in wanted:
            if (name, number) not in keep:
                fitted_cell = runs.fitted(
                    name, number, cells_dir=options.cells_dir, work=options.work, data_dir=options.data
                )
                keep[name, number] = embedded(fitted_cell, described["ood"], described.get("limit"))
        learned, deduced = (keep[key] for key in wanted)
        seeds.append(parts(learned, deduced, one_norm=pair_config.get("one_norm", False)))
    return Pair(pair_config["label"], described["ood"], seeds)


if __name__ == "__main__":
    main()
