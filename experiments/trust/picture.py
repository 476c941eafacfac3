"""The picture of the page on trust: what is answered to known and to OOD queries of one setting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.trust.measure import NOVELTY, Scored
from laplacian_metric.core.files import atomic_write
from laplacian_metric.report.plots import COLOURS, as_png

BINS = 20


def draw(scored_queries: Scored, title: str, path: Path) -> None:
    """Write the picture: the probability of right, wrong and OOD queries, its calibration, and their novelty."""
    figure = Figure(figsize=(10, 3), dpi=110, layout="constrained")
    probability, calibration, novelty = figure.subplots(1, 3)
    test = scored_queries.scores["test"]
    out = [scored_queries.scores[part] for part in scored_queries.ood()]
    groups = {
        "known, nearest item right": (
            scored_queries.probability[scored_queries.right],
            test[NOVELTY][scored_queries.right],
        ),
        "known, nearest item wrong": (
            scored_queries.probability[~scored_queries.right],
            test[NOVELTY][~scored_queries.right],
        ),
        "out of distribution": (
            np.concatenate([1 / (1 + np.exp(scores["trust"])) for scores in out]),
            np.concatenate([scores[NOVELTY] for scores in out]),
        ),
    }
    farthest = float(np.quantile(groups["out of distribution"][1], 0.9))
    for (label, (p, novel)), colour in zip(groups.items(), COLOURS[2::-1], strict=True):
        for axes, values, most in ((probability, p, 1.0), (novelty, np.minimum(novel, farthest), farthest)):
            weights = np.full(len(values), 1 / len(values))
            bins = np.linspace(0, most, BINS + 1)
            axes.hist(values, bins=bins, weights=weights, histtype="step", lw=1.8, color=colour, label=label)
    bins = np.minimum((scored_queries.probability * 10).astype(int), 9)
    for number in range(10):
        inside = bins == number
        if inside.sum() >= 10:
            calibration.plot(
                scored_queries.probability[inside].mean(),
                scored_queries.right[inside].mean(),
                "o",
                color=COLOURS[0],
            )
    calibration.plot([0, 1], [0, 1], color="#9aa5b1", lw=1)
    probability.set(xlabel="probability", ylabel="share of the queries", title=title)
    calibration.set(xlabel="probability", ylabel="share that is right", title="known queries, ten bins")
    novelty.set(xlabel="novelty", title="by novelty")
    probability.legend(fontsize=7, frameon=False)
    with atomic_write(path) as temporary:
        temporary.write_bytes(as_png(figure))
