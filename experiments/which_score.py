"""Which score for what, as a picture: Trust, plain distances and votes on four questions, over all measured settings.

python -m experiments.which_score --results figures/results/trust --out docs/pictures/which_score.png
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from experiments.arguments import folders
from laplacian_metric.core.files import atomic_write
from laplacian_metric.report.plots import COLOURS, as_png

SCORES = {
    "trust": "Trust: probability",
    "novelty": "Trust: novelty",
    "logistic of 3": "logistic of cosine, margin and vote",
    "gallery distance": "distance to the gallery, embedding",
    "margin": "margin to another class",
    "vote": "vote of the neighbours",
    "feature distance": "distance to the gallery, features",
    "kNN feature distance": "k nearest, features",
    "LOF": "local outlier factor",
    "Mahalanobis": "Mahalanobis distance",
    "relative Mahalanobis": "relative Mahalanobis distance",
    "embedding norm": "norm of the embedding",
    "feature norm": "norm of the features",
}
QUESTIONS = {
    "R": "Is the answer wrong?\nknown kinds only",
    "near": "Is it of a new class?\nof the same kind of data",
    "far": "Is it something else?\nother data",
    "O": "Can I trust the answer?\nall of them together",
}


def read(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return setting -> score -> question -> AUROC, each the mean over seeds; what a setting lacks is left out."""
    seeds: dict[str, list[dict[str, dict[str, float]]]] = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        seeds.setdefault(content["name"], []).append(content["scores"])
    if not seeds:
        raise ValueError(f"{folder} has no result files: experiments.trust writes them")
    return {
        name: {
            score: {
                question: mean(one[score][question] for one in every)
                for question in QUESTIONS
                if all(one[score].get(question) is not None for one in every)
            }
            for score in SCORES
        }
        for name, every in seeds.items()
    }


def means(settings: Mapping[str, Mapping[str, Mapping[str, float]]], question: str) -> dict[str, float]:
    """Return the mean AUROC of every score over the settings that have the question."""
    return {
        score: mean(values[score][question] for values in settings.values() if question in values[score])
        for score in SCORES
    }


def draw(settings: Mapping[str, Mapping[str, Mapping[str, float]]]) -> bytes:
    """Return the picture: a row for each score, a small point for each setting, a large one for the mean."""
    figure = Figure(figsize=(11, 4.6), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(QUESTIONS), sharey=True)
    for axes, (question, title) in zip(panels, QUESTIONS.items(), strict=True):
        average = means(settings, question)
        best = max(average.values())
        for row, score in enumerate(SCORES):
            values = [one[score][question] for one in settings.values() if question in one[score]]
            axes.plot(values, np.full(len(values), row), "o", color="#9aa5b1", markersize=3, alpha=0.7)
            good = average[score] > best - 0.01
            axes.plot(average[score], row, "o", color=COLOURS[2] if good else COLOURS[0], markersize=8)
            axes.annotate(
                f"{average[score]:.2f}",
                (-0.09, row),
                fontsize=8,
                va="center",
                weight="bold" if good else "normal",
            )
        axes.axvline(0.5, color="#9aa5b1", linewidth=0.8, linestyle=":")
        axes.set(xlim=(-0.12, 1.01), xticks=(0.25, 0.5, 0.75, 1), xlabel="AUROC")
        axes.set_title(title, fontsize=9)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(SCORES)), list(SCORES.values()), fontsize=9)
    panels[0].invert_yaxis()
    return as_png(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the picture."""
    command = folders(__doc__, ("--results", "--out"))
    options = command.parse_args(arguments)
    with atomic_write(options.out) as temporary:
        temporary.write_bytes(draw(read(options.results)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
